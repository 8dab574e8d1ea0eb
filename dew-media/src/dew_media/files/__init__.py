"""Encoded files, whatever stores them: what the providers `images` and `video` share."""
