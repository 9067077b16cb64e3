"""The thin runtime that executes what `mstarc` compiled. Importing the package itself imports no torch."""
