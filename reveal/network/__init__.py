"""The REVEAL network: ViT, T5, heads, attentive fusion, generation."""
