"""Which warnings fail a test: those of m2dr, and not those of libraries, which differ by machine."""

import warnings

import pytest


def test_a_warning_of_m2dr_is_an_error() -> None:
    with pytest.raises(UserWarning, match="odd"):
        warnings.warn_explicit("odd", UserWarning, "x.py", 1, module="m2dr.index.x")
    with pytest.raises(UserWarning, match="odd"):
        warnings.warn("odd", UserWarning, stacklevel=1)  # as m2dr's own are attributed to callers


def test_a_warning_of_a_library_is_none() -> None:
    warnings.warn_explicit("old", DeprecationWarning, "x.py", 1, module="sklearn.x")
