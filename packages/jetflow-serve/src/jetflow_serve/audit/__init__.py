"""The audit: a share of finished requests is decoded again without speculation and compared."""
