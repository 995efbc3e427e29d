"""Rules about words, in several languages. Pure, without a model and without a name of anything that is done
with them."""
