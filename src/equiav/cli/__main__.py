"""`python -m equiav.cli`, the form that torchrun starts."""

from equiav.cli import main

main()
