"""stateless"""
