"""Frozen networks that measure images: VGG, LPIPS, EfficientNet-Lite."""
