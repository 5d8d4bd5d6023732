"""The binding of DCMI, Huawei's device library."""
