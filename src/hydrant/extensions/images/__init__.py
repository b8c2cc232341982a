"""Data sets of images: in one folder per class, or published ones that are downloaded."""

from hydrant.extensions.images.archive import cifar10 as cifar10
from hydrant.extensions.images.archive import cifar100 as cifar100
from hydrant.extensions.images.archive import mnist as mnist
from hydrant.extensions.images.folder import ImageAugment as ImageAugment
from hydrant.extensions.images.folder import image_folder as image_folder
from hydrant.extensions.images.mixing import MixupCutmix as MixupCutmix
