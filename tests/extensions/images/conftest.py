"""Folders of images, and published data sets."""

from data_files import image_root, published

__all__ = ["image_root", "published"]
