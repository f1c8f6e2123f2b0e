"""REVEAL: a vision-language model that answers by retrieving from a multi-source, multi-modal memory.

A question with a picture becomes a query; the nearest items of a memory (encyclopedia passages, captions, facts and
question-answer pairs, each with or without a picture) are fetched by inner product, compressed to a few value tokens
each, weighted by their retrieval scores and read by the generator beside the question. The scores take part in
reading, so the loss on the answer trains the retriever too (Hu et al., "REVEAL: Retrieval-Augmented Visual-Language
Pre-Training with Multi-Source Multimodal Knowledge Memory", CVPR 2023, arXiv 2212.05221).
"""
