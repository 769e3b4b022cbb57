"""The steps of a verify round around attention, each one op without a host wait."""
