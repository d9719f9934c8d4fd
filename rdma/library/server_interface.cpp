// SPDX-License-Identifier: BSD-3-Clause
// The server's half of the C interface.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "rdma/library/gate.hpp"
#include "rdma/library/options.hpp"
#include "rdma/library/server_handle.hpp"

using rtrs::Failure;
using rtrs::library::NoCancellation;
using rtrs::library::read_options;
using rtrs::library::tell;

namespace {

tl::expected<std::unique_ptr<rtrs_server>, Failure> listen(const char* uri,
                                                           const rtrs_server_ops* ops,
                                                           void* context,
                                                           const rtrs_server_options* options) {
  const rtrs::library::NoSignals no_signals;
  const auto handler = read_options(ops);
  if (!handler) return tl::unexpected(handler.error());
  if (handler->request == nullptr) {
    return tl::unexpected(Failure{EINVAL, "a server needs a handler: set rtrs_server_ops.request"});
  }
  const auto known = read_options(options);
  if (!known) return tl::unexpected(known.error());
  auto settings = rtrs::library::server_options(uri, *known);
  if (!settings) return tl::unexpected(settings.error());
  auto server = std::make_unique<rtrs_server>(std::move(*settings), *known, *handler, context);
  if (auto up = server->start(); !up) return tl::unexpected(up.error());
  return server;
}

}  // namespace

rtrs_server* rtrs_listen(const char* uri, const rtrs_server_ops* ops, void* context,
                         const rtrs_server_options* options, rtrs_error* error) {
  const NoCancellation no_cancellation;
  try {
    auto server = listen(uri, ops, context, options);
    if (!server) return tell(server.error(), error), nullptr;
    return server->release();
  } catch (const std::exception& exception) {
    return tell({EAGAIN, exception.what()}, error), nullptr;
  }
}

int rtrs_server_close(rtrs_server* server, unsigned drain_ms) {
  if (server == nullptr || server->left_behind()) return 0;
  const NoCancellation no_cancellation;
  if (!server->stop(std::chrono::milliseconds{drain_ms})) return EBUSY;
  delete server;
  return 0;
}

int rtrs_server_address(rtrs_server* server, unsigned index, char* text, size_t size) {
  if (server == nullptr) return EINVAL;
  const auto& all = server->addresses();
  if (index >= all.size()) return ENOENT;
  if (all[index].size() >= size) return ERANGE;
  std::memcpy(text, all[index].c_str(), all[index].size() + 1);
  return 0;
}

unsigned rtrs_server_port(rtrs_server* server) {
  if (server == nullptr) return 0;
  const std::string& first = server->addresses().front();
  return static_cast<unsigned>(std::atoi(first.substr(first.rfind(':') + 1).c_str()));
}

void rtrs_finish(rtrs_request* request, int error, const void* answer, size_t length) {
  if (request == nullptr || request->session().server().left_behind()) return;
  const NoCancellation no_cancellation;
  request->session().end(*request, error, {static_cast<const std::byte*>(answer), length}, nullptr,
                         nullptr);
}

void rtrs_finish_with(rtrs_request* request, const void* answer, size_t length,
                      void (*release)(void*), void* context) {
  if (request == nullptr || request->session().server().left_behind())
    return release != nullptr ? release(context) : void();
  const NoCancellation no_cancellation;
  request->session().end(*request, 0, {static_cast<const std::byte*>(answer), length}, release,
                         context);
}

void* rtrs_take_data(rtrs_request* request) {
  return request != nullptr ? request->gathered.take() : nullptr;
}

const char* rtrs_session_name(rtrs_session* session) { return session->name().c_str(); }
const char* rtrs_session_peer(rtrs_session* session) { return session->peer().c_str(); }
const char* rtrs_session_user(rtrs_session* session) { return session->user().c_str(); }
void rtrs_session_set_context(rtrs_session* session, void* context) { session->context = context; }
void* rtrs_session_context(rtrs_session* session) { return session->context; }
