"""Every kind of control keeps the contract."""

from control_contract import BASE, UNIT, ControlContract

from plugins.control import ControlNet, ControlNetConfig, MediaPipeConfig, MediaPipePlugin, T2IAdapter, T2IAdapterConfig


class TestMediaPipePlugin(ControlContract):
    cls, config = MediaPipePlugin, MediaPipeConfig.for_unet(BASE, UNIT)


class TestT2IAdapter(ControlContract):
    cls, config = T2IAdapter, T2IAdapterConfig.for_unet(BASE, UNIT)


class TestControlNet(ControlContract):
    cls, config = ControlNet, ControlNetConfig.for_unet(BASE, UNIT)
