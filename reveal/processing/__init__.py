"""From texts and images to the network's inputs: tokenizers, prompts, items as arrays."""
