"""How good recall is: data sets played through the write path, questions asked of the read path, figures."""
