"""The two-session story, and a stand to try it by hand. Not part of the product."""
