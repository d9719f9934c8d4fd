// SPDX-License-Identifier: BSD-3-Clause
// A client as its server knows it: the slots of its calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rdma/library/call_message.hpp"
#include "rdma/library/incoming_call.hpp"
#include "rdma/server.hpp"

struct rtrs_server;

/// Carries each call out once. A slot remembers its newest call: that one is answered again as
/// often as it is asked for, an older one is refused.
///
/// Threads: the event loop of the session; end() any.
/// Source:  docs/protocol.md, calls.
struct rtrs_session {
 public:
  rtrs_session(rtrs_server& server, rtrs::ServerSession& session);
  rtrs_session(const rtrs_session&) = delete;
  rtrs_session& operator=(const rtrs_session&) = delete;

  /// It speaks the protocol of calls.
  bool is_client_of_ours() const;
  void on_request(rtrs::ServerRequest& request);
  /// Ends a call with its handler's answer. `release` (may be null) gives the answer back.
  void end(rtrs_request& call, int error, rtrs::wire::ConstBytes answer, void (*release)(void*),
           void* release_context);

  /// Nothing is received into this memory or sent from it any more.
  void let_go(rtrs::wire::ConstBytes memory);

  const std::string& name() const { return rtrs::name_of(session_); }
  const std::string& peer() const { return rtrs::peer_of(session_); }
  /// The user proven by the session; "" = nothing.
  const std::string& user() const { return rtrs::identity_of(session_).name; }
  rtrs_server& server() const { return server_; }
  /// Of its client, for ids.
  const std::uint8_t (&client_id() const)[16] { return client_id_; }

  void* context = nullptr;  ///< the handler's own

 private:
  /// A handler's answer.
  struct Answer {
    rtrs::wire::ConstBytes bytes;
    void (*release)(void*) = nullptr;  ///< null: the bytes must be copied
    void* context = nullptr;
    bool is_kept = false;  ///< by the call
  };
  struct Slot {
    bool known = false;
    std::uint32_t generation = 0;
    std::unique_ptr<rtrs_request> call;
  };

  Slot* find(const rtrs::library::CallHeader& header);
  rtrs_request& renew(Slot& slot, std::uint32_t generation);
  void on_call(rtrs_request& call, rtrs::ServerRequest& request,
               const rtrs::library::CallMessage& message);
  void on_piece(rtrs_request& call, rtrs::ServerRequest& request,
                const rtrs::library::CallMessage& message);
  int add_piece(rtrs_request& call, rtrs::ServerRequest& request, std::uint64_t offset);
  void on_fetch(rtrs_request& call, rtrs::ServerRequest& request,
                const rtrs::library::CallMessage& message);
  void on_forget(rtrs_request& call, rtrs::ServerRequest& request);
  void execute(rtrs_request& call);
  void refuse(rtrs_request& call, int error);
  int keep(rtrs_request& call, const Answer& answer);
  void conclude(rtrs_request& call, int error, const Answer& answer);

  rtrs_server& server_;
  rtrs::ServerSession& session_;
  const std::thread::id loop_ = std::this_thread::get_id();
  std::uint8_t client_id_[16];
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<rtrs_request>> orphans_;  ///< execute, but nobody waits for them
};
