"""Diffusers folders, single files, LoRA, tokenizers: reading and writing what people have."""
