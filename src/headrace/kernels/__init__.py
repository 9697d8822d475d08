"""Kernels: the computation of one slot, as pure functions of Arrow tables, without Spark or disk."""
