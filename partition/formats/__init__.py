"""Parts in the forms of DGL and of the original PaGraph."""
