"""A backend of Triton that compiles nothing: with TRITON_INTERPRET=1 kernels are interpreted.

vLLM asks Triton for a backend named ``cpu`` before it uses its Model Runner V2 on a CPU. The folder
above on the Python path is one; it must not be there when Model Runner V1 is tested.
"""
