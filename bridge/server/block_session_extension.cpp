// SPDX-License-Identifier: BSD-3-Clause
// Messages that only rnbdkit peers send, and only when both said that they know them.
#include <cerrno>

#include "bridge/server/block_session.hpp"

namespace rnbd {
void BlockSession::extension(rtrs::ServerRequest& request, wire::MessageType type) {
  if (!facts_.extensions) return finish(request, EINVAL);
  switch (type) {
    case wire::MessageType::device_info:
      return claim_.on_device_info(request);
    case wire::MessageType::claim:
      return order_.take(request, type);
    case wire::MessageType::list_exports:
      return list_exports(request);
    case wire::MessageType::directory:
      return directory(request);
    case wire::MessageType::who:
      return who(request);
    case wire::MessageType::block_status:
      return io_.block_status(request);
    case wire::MessageType::cache:
      return io_.cache(request);
    default:
      for (const auto& annex : annexes_)
        if (annex->on_request(request, type)) return;
      return finish(request, EINVAL);
  }
}

void BlockSession::list_exports(rtrs::ServerRequest& request) {
  const auto message =
      wire::decode<wire::ListExports>(request.message, wire::MessageType::list_exports);
  if (!message || !request.is_read || request.data.size() < sizeof(wire::ListExportsResponse))
    return finish(request, EINVAL);
  const User asking = facts_.user();
  finish_with(request, wire::encode_export_page(catalogue_.list(&asking), message->first,
                                                request.data.size()));
}

void BlockSession::directory(rtrs::ServerRequest& request) {
  const auto message = wire::decode_directory(request.message);
  if (!message || !request.is_read || request.data.size() < sizeof(wire::DirectoryResponse))
    return finish(request, EINVAL);
  const User asking = facts_.user();
  finish_with(request, wire::encode_directory_page(catalogue_.directory(&asking, message->kinds),
                                                   message->first, request.data.size()));
}

/// Answers users with a right on the export. For others the export does not exist. A client that is
/// out is told so of any name, as by its OPENs.
void BlockSession::who(rtrs::ServerRequest& request) {
  const auto name = wire::decode_who(request.message);
  if (!name || !request.is_read || request.data.size() < sizeof(wire::WhoResponse) + wire::kMaxWho)
    return finish(request, EINVAL);
  const User asking = facts_.user();
  if (catalogue_.evicted().contains(asking)) {
    const wire::WhoAnswer out{
        "the server's operator has evicted this client; what lets it in again, at the server: "
        "rnbd-ctl server readmit " +
            who_is(asking),
        true};
    return finish_with(request, wire::encode_who_response(out));
  }
  const auto answer = catalogue_.who_has(*name, facts_.features);
  if (catalogue_.permission(*name, asking) == Permission::none || !answer)
    return finish(request, ENOENT);
  finish_with(request, wire::encode_who_response(*answer));
}

}  // namespace rnbd
