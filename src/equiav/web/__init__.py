"""`equiav serve`: a page on this machine to search a collection and to see where sounds come from."""
