"""Token files of other programs, read where they lie: one module for each format, one reader for all."""
