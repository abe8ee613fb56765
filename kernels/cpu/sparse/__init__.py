"""Exact activation sparsity: up rows and down columns are read only for the neurons that fire."""
