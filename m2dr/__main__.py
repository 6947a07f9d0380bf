"""`python -m m2dr`, for torchrun and accelerate."""

from m2dr.cli import main

if __name__ == "__main__":
    main()
