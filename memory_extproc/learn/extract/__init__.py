"""Facts out of turns: by rules, or by a language model whose answer is checked."""
