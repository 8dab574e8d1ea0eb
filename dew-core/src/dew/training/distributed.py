"""Which rows each process reads, and how they become one global array.

Each process asks `data_partition(mesh)` for its share, reads it, and hands each step to `shard_batch`. A share is every
n-th row of the step, rows i, n + i, 2n + i, ... of share i of n; in a global array the rows of one share lie together.
So at any number of processes the array of step k holds the same rows as at one, no row twice, in a fixed order that
`row_order` tells. Whatever depends on the row's number in the array (a key split by row, a mean over rows 0 to 7)
depends on the topology; `row_keys` does not, since it follows the record.
"""

from dew.training.draws import row_keys
from dew.training.placement import Placement, shard_batch
from dew.training.shares import build_mesh, data_partition, row_order

__all__ = ["Placement", "build_mesh", "data_partition", "row_keys", "row_order", "shard_batch"]
