"""A client of the columns service that needs no generated code.

It obtains the service's definition from a node, through gRPC server reflection.
"""

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from google.rpc import status_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

PACKAGE = "loggos.columns.v1"
ERROR = "loggos.common.v1.Error"


class Columns:
    """A stub of the columns service of one node, with one method per RPC.

    A method takes the fields of its request by name, and `timeout` in seconds: `columns.Put(table=..., key=..., ...)`
    returns a `WriteResponse`. A failed call raises `grpc.RpcError`; `error_of` returns its details.
    """

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", 64 << 20)])
        self._pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(self.channel))
        service = self._pool.FindServiceByName(f"{PACKAGE}.Columns")
        for method in service.methods:
            setattr(self, method.name, self._method(method))

    def message(self, name):
        """The class of a message type, such as `StreamRequest`."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))

    def error_of(self, error):
        """The details of a failed call: an `Error` message, or None if the error is not from a Loggos node."""
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                for detail in status_pb2.Status.FromString(value).details:
                    if detail.type_url.endswith(f"/{ERROR}"):
                        error = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(ERROR))
                        return error.FromString(detail.value)
        return None

    def kind_of(self, error):
        """The kind of an error, such as `KIND_VERSION_MISMATCH`."""
        details = self.error_of(error)
        return details and json_format.MessageToDict(details).get("kind", "KIND_UNSPECIFIED")

    def _method(self, method):
        request = message_factory.GetMessageClass(method.input_type)
        response = message_factory.GetMessageClass(method.output_type)
        path = f"/{method.containing_service.full_name}/{method.name}"
        codec = {"request_serializer": request.SerializeToString, "response_deserializer": response.FromString}
        if method.client_streaming:
            return self.channel.stream_stream(path, **codec)
        unary = self.channel.unary_unary(path, **codec)

        def call(timeout=10, **fields):
            return unary(request(**fields), timeout=timeout)

        return call
