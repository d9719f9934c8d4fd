// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/server_path_host.hpp"

#include <algorithm>
#include <utility>

#include "tests/sim/proofs.hpp"

namespace sim {

using rtrs::ServerPathState;

ServerPathHost::ServerPathHost(PathEnvironment environment, rtrs::ServerSession& session,
                               rtrs::ServerPathOptions options)
    : environment_{std::move(environment)},
      world_{environment_.world},
      scope_{world_, environment_.server},
      keys_{world_, /*shared=*/true},
      session_{session},
      path_{session, options},
      links_(options.cid_count) {
  const ServerStyle style = environment_.knobs.server_style;
  if (style != ServerStyle::own) {
    linux_server_.emplace(world_, session.options().queue_depth, session.options().chunk_size(),
                          style == ServerStyle::linux_new_keys);
  }
  if (options.new_keys) chunk_keys_.emplace(world_, environment_.open_chunks);
  path_.admit = [this](std::string_view name) {
    rtrs::PathRefusal refusal = environment_.admit(name);
    refused_ = refusal.why != nullptr;
    if (linux_server_) refusal.error = 0;  // it closes
    return refusal;
  };
  path_.on_connected = environment_.on_connected;
  path_.provide_chunks = [this] { return provide_chunks(); };
  path_.on_fenced = [this](const char* why, bool fault) { on_fenced(why, fault); };
  path_.on_unused = [this](std::span<const rtrs::MutableBytes> unused, std::uint64_t held) {
    give_back(unused, held);
  };
  path_.on_gone = [this] { environment_.on_gone(); };
}

bool ServerPathHost::provide_chunks() {
  refused_ = !environment_.have_memory();
  if (refused_) return false;
  auto& chunks = environment_.shared_chunks != nullptr ? *environment_.shared_chunks : chunks_;
  chunks.resize(session_.options().chunk_memory());
  path_.set_chunks(chunks);
  return true;
}

/// A reader that still looks there gets bytes that nobody has written.
void ServerPathHost::give_back(std::span<const rtrs::MutableBytes> unused,
                               std::uint64_t held) const {
  if (environment_.shared_chunks != nullptr) return;
  for (const rtrs::MutableBytes part : unused) std::ranges::fill(part, std::byte{0xDD});
  environment_.on_shrunk(held);
}

std::optional<std::string_view> ServerPathHost::user() const {
  if (!path_.authenticates()) return std::nullopt;
  return path_.proof(0).user().name;
}

bool ServerPathHost::has_impostors() const {
  return std::ranges::any_of(links_,
                             [](const auto& link) { return link && link->wire->is_impostor(); });
}

/// Nothing but the client itself may have got in.
void ServerPathHost::check_users() {
  if (!path_.authenticates()) return;
  for (std::uint16_t cid = 0; cid < links_.size(); ++cid) {
    const auto& proof = path_.proof(cid);
    if (proof.proven() && proof.user().name == user_of(environment_.client)) continue;
    world_.violate(who() + " has a connection that did not prove to be its client's");
  }
}

void ServerPathHost::add(const rtrs::wire::ConnectParameters& request, std::shared_ptr<Wire> wire) {
  const std::uint16_t cid = request.cid;
  if (closed_ || draining_) return wire->close(Side::server);
  if (!std::exchange(started_, true)) {
    scope_.after(environment_.knobs.handshake_timeout, [this] {
      if (!closed_ && path_.state() == ServerPathState::connecting) {
        close("the handshake was not finished in time");
      }
    });
  }
  links_[cid] = std::make_unique<Link>();
  Link& link = *links_[cid];
  link.wire = wire;
  wire->set_session_epoch(session_.options().session_epoch);
  if (chunk_keys_) wire->keep_copies();
  link.queue_pair = std::make_unique<SimQueuePair>(
      std::move(wire), Side::server, keys_,
      SimQueuePair::Options{.node = environment_.server,
                            .linux_server = linux_server_ ? &*linux_server_ : nullptr,
                            .chunk_keys = chunk_keys_ ? &*chunk_keys_ : nullptr});
  link.queue_pair->on_ready = [this, &link] { schedule_progress(link); };
  link.queue_pair->on_post = [this, &link] { schedule_flush(link); };
  link.handler = &path_.add(cid, *link.queue_pair, rtrs::wire::encode(request));
  auto accept = path_.accept_parameters();
  if (linux_server_) accept.new_rkey = linux_server_->new_keys();
  link.queue_pair->send_record(rtrs::wire::bytes_of(rtrs::wire::encode(accept)));
}

void ServerPathHost::schedule_progress(Link& link) {
  if (std::exchange(link.progress_due, true)) return;
  const NetworkKnobs& knobs = environment_.knobs.network;
  Duration delay =
      world_.rng().delay(0us, knobs.poll_max) * (world_.rng().chance(knobs.slow_poll) ? 100 : 1);
  if (world_.rng().chance(knobs.late_read)) {
    delay = world_.rng().delay(0us, knobs.late_read_max);
  }
  scope_.after(delay, [this, &link] {
    link.progress_due = false;
    if (!closed_) progress(link);
  });
}

bool ServerPathHost::read() {
  return std::ranges::all_of(links_, [this](auto& link) {
    return !link || closed_ || world_.broken() || progress(*link);
  });
}

/// False: there may be more to read.
bool ServerPathHost::progress(Link& link) {
  if (draining_) return true;
  const bool was_connecting = path_.state() == ServerPathState::connecting;
  unsigned heard = 0;
  in_progress_ = true;
  const auto status = link.queue_pair->progress(*link.handler, heard);
  in_progress_ = false;
  if (world_.broken()) return true;
  if (fenced_ != nullptr) {
    close(fenced_);
    return true;
  }
  if (session_.has_pending() && status != SimQueuePair::Status::more) environment_.on_pending();
  if (world_.broken() || closed_) return true;
  if (was_connecting && path_.state() == ServerPathState::connected) {
    world_.note("server", environment_.serial, "path is up");
    check_users();
    path_.start_heartbeat(world_.now());
    watch_.emplace(world_, environment_.knobs, who(), environment_.server, environment_.client);
    schedule_tick();
  }
  if (heard > 0 && watch_) watch_->heard();
  switch (status) {
    case SimQueuePair::Status::drained:
      return true;
    case SimQueuePair::Status::more:
      schedule_progress(link);
      return false;
    default:
      if (rtrs::Complaint complaint = link.queue_pair->complaint()) on_complaint(complaint);
      close("a connection ended");
      return true;
  }
}

void ServerPathHost::on_complaint(rtrs::Complaint complaint) {
  if (refused_ || (path_.authenticates() && half_open() && has_impostors())) return;
  world_.violate(who() + " complains: " + complaint);
}

void ServerPathHost::on_fenced(const char* why, bool fault) {
  if (fault) on_complaint(why);
  if (in_progress_) {
    fenced_ = why;
  } else {
    close(why);
  }
}

void ServerPathHost::schedule_flush(Link& link) {
  if (std::exchange(link.flush_due, true)) return;
  scope_.soon([this, &link] {
    link.flush_due = false;
    if (closed_) return;
    link.queue_pair->flush();
    if (draining_) check_drained();
  });
}

void ServerPathHost::schedule_tick() {
  const Duration interval = environment_.knobs.heartbeat_interval;
  scope_.after(interval + world_.rng().delay(0us, interval / 20), [this] {
    if (closed_) return;
    if (path_.on_tick(world_.now()) == rtrs::Heartbeat::Verdict::dead) {
      watch_->dead(silenced());
      return close("the client is silent");
    }
    schedule_tick();
  });
}

bool ServerPathHost::silenced() const {
  for (const auto& link : links_) {
    if (link && link->wire->disturbed()) return true;
  }
  return false;
}

void ServerPathHost::drain() {
  draining_ = true;
  watch_.reset();  // nobody looks any more
  check_drained();
}

void ServerPathHost::check_drained() {
  if (closed_ || path_.unanswered() != 0) return;
  for (const auto& link : links_) {
    if (link && !link->queue_pair->idle()) {
      // Try again when more has been sent.
      scope_.after(100us, [this] { check_drained(); });
      return;
    }
  }
  close("the server stops");
}

void ServerPathHost::close(const char* why) {
  if (std::exchange(closed_, true)) return;
  world_.note("server", environment_.serial, why);
  watch_.reset();
  environment_.on_closing();
  path_.close();
  for (auto& link : links_) {
    if (link) link->queue_pair->close();
  }
  if (chunk_keys_) chunk_keys_->end_all();
  session_.on_path_closed(path_);
}

}  // namespace sim
