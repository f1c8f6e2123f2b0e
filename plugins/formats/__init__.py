"""Formats that other programs run: StableHLO, ONNX and LiteRT files of any function of JAX, weights included."""
