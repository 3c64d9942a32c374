"""Readers and writers of sparse tensor files."""
