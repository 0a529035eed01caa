"""The GPU backend of ctworker: libctworker_cuda.so, which ctworker's program finds beside its own package."""

__version__ = "0.1.0"
