"""Types of numpy arrays, by what they hold. Nothing else of `m2dr.core` knows numpy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bools = NDArray[np.bool_]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]  # vectors in float16, float32 or float64
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Intp = NDArray[np.intp]  # places that numpy gives: argsort, nonzero
