"""Never asked for anything: the interpreter compiles nothing."""

from triton.backends.compiler import BaseBackend


class Interpreted(BaseBackend):
    @staticmethod
    def supports_target(target):
        return target.backend == "cpu"

    def hash(self):
        return "interpreted"

    def parse_options(self, options):
        raise NotImplementedError

    def add_stages(self, stages, options):
        raise NotImplementedError

    def load_dialects(self, context):
        raise NotImplementedError

    def get_module_map(self):
        raise NotImplementedError
