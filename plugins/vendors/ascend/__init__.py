"""Huawei's Ascend NPUs."""
