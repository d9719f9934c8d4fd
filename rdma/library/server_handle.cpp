// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/server_handle.hpp"

#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <string>
#include <utility>

using rtrs::ServerRequest;
using rtrs::ServerSession;

namespace {

constexpr std::uint64_t kDefaultMaxRequest = 1ULL << 30;
constexpr std::uint64_t kDefaultMemory = 4ULL << 30;

std::uint64_t request_memory(const rtrs_server_options& options) {
  if (options.request_memory != 0) return options.request_memory;
  const auto ram = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                   static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return std::min(kDefaultMemory, ram / 4);
}

/// Calls a function of the program. C++ may throw in it: that must not end an event loop.
template <class Function, class... Arguments>
void guarded(const rtrs::Log& log, Function* function, Arguments... arguments) {
  try {
    function(arguments...);
  } catch (const abi::__forced_unwind&) {
    throw;  // no exception: the thread ends, as Python has it when it ends itself
  } catch (const std::exception& exception) {
    if (log) log(rtrs::LogLevel::error, std::string{"the handler threw: "} + exception.what());
  } catch (...) {
    if (log) log(rtrs::LogLevel::error, "the handler threw something that is no std::exception");
  }
}

}  // namespace

rtrs_server::rtrs_server(rtrs::ServerOptions settings, const rtrs_server_options& options,
                         const rtrs_server_ops& ops, void* context)
    : ops_{ops},
      context_{context},
      max_request_size_{options.max_request_size != 0 ? options.max_request_size
                                                      : kDefaultMaxRequest},
      queue_depth_{settings.queue_depth},
      log_{settings.log},
      budget_{request_memory(options)} {
  if (options.workers != 0) {
    workers_ = std::make_unique<rtrs::library::Workers>(
        options.workers, [this](rtrs_request& call) { call_handler(call); });
  }
  server_ = rtrs::Server::create(std::move(settings), *this);
}

tl::expected<void, rtrs::Failure> rtrs_server::start() {
  const auto up = server_->start();
  if (up) addresses_ = server_->addresses();
  return up;
}

void* rtrs_server::on_session_up(ServerSession& session) {
  auto* client = new rtrs_session{*this, session};
  if (client->is_client_of_ours() && ops_.session_up != nullptr) {
    guarded(log_, ops_.session_up, context_, client);
  }
  return client;
}

void rtrs_server::on_session_down(ServerSession& session) {
  auto* client = static_cast<rtrs_session*>(rtrs::context_of(session));
  if (client->is_client_of_ours() && ops_.session_down != nullptr) {
    guarded(log_, ops_.session_down, context_, client);
  }
  delete client;
}

void rtrs_server::on_paths_changed(ServerSession& session) {
  auto* client = static_cast<rtrs_session*>(rtrs::context_of(session));
  if (client->is_client_of_ours() && ops_.paths_changed != nullptr) {
    guarded(log_, ops_.paths_changed, context_, client, rtrs::paths_of(session));
  }
}

void rtrs_server::on_request(ServerSession& session, ServerRequest& request) {
  try {
    static_cast<rtrs_session*>(rtrs::context_of(session))->on_request(request);
  } catch (const std::bad_alloc&) {
    request.finish(ENOBUFS);  // allocations come before anything else
  }
}

void rtrs_server::execute(rtrs_request& call) {
  if (workers_) return workers_->run(call);
  call_handler(call);
}

void rtrs_server::call_handler(rtrs_request& call) const {
  const rtrs_incoming incoming = call.view(call.session().client_id());
  guarded(log_, ops_.request, context_, &incoming);
}
