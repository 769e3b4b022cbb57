"""What both of vLLM's model runners share; like the adapters beside it, it imports vLLM."""
