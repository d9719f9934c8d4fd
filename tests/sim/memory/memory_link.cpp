// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/memory/memory_link.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "rdma/wire/messages.hpp"

namespace sim {

/// Each post of the server is on its way at once.
class MemoryLink::Pair final : public rtrs::QueuePair {
 public:
  explicit Pair(MemoryLink& link) : link_{link} {}
  rtrs::Ticket write_with_immediate(rtrs::RemoteMemory to, rtrs::ConstBytes data, rtrs::ConstBytes,
                                    std::uint32_t immediate) override {
    return post({immediate, to.address, {data.begin(), data.end()}});
  }
  rtrs::Ticket send_with_immediate(rtrs::ConstBytes, std::uint32_t immediate) override {
    return post({.immediate = immediate});
  }
  rtrs::Ticket write(rtrs::RemoteMemory, rtrs::ConstBytes) override { return ++posted_; }
  rtrs::Ticket send(rtrs::ConstBytes) override { return ++posted_; }
  rtrs::Ticket send_with_invalidate(std::uint32_t) override { return ++posted_; }
  void post_receives(unsigned, std::uint32_t) override {}
  rtrs::RemoteMemory expose(std::uint32_t window, rtrs::MutableBytes) override {
    return {0x1000, window};
  }
  void withdraw(std::uint32_t) override {}
  void revoke(std::uint32_t) override {}
  void flush() override {}
  rtrs::Ticket sent() const override { return posted_; }
  void disown_unsent() override {}

 private:
  rtrs::Ticket post(ToClient message) {
    link_.to_client.push_back(std::move(message));
    return ++posted_;
  }
  MemoryLink& link_;
  rtrs::Ticket posted_ = 0;
};

class MemoryLink::Card final : public rtrs::Regions {
 public:
  explicit Card(MemoryLink& link) : link_{link} {}
  tl::expected<rtrs::RemoteMemory, int> expose(rtrs::MutableBytes memory, unsigned) override {
    link_.events_.exposes(link_);
    const auto key = static_cast<std::uint32_t>(link_.keys_.size() + 1);
    link_.keys_[key] = {memory, link_.uuid(), link_.number_};
    mine_.push_back(key);
    return rtrs::RemoteMemory{std::uint64_t{key} << 32, key};
  }
  void retire(rtrs::RemoteMemory where, std::function<void()> dead) override {
    link_.events_.later([this, key = where.key, dead = std::move(dead)] {
      link_.keys_.at(key).alive = false;
      dead();
    });
  }
  void retire_all(std::function<void()> dead) override {
    link_.events_.later([this, dead = std::move(dead)] {
      end();
      dead();
    });
  }
  void end() {
    for (const std::uint32_t key : mine_) link_.keys_.at(key).alive = false;
  }

 private:
  MemoryLink& link_;
  std::vector<std::uint32_t> mine_;
};

MemoryLink::MemoryLink(unsigned user, unsigned number, rtrs::ServerSession& session,
                       const rtrs::ServerPathOptions& options, CardKeys& keys, Events events)
    : user_{user},
      number_{number},
      session_{session},
      keys_{keys},
      events_{std::move(events)},
      card_{std::make_unique<Card>(*this)},
      pair_{std::make_unique<Pair>(*this)},
      chunks_(session.options().chunk_memory()),
      path_{std::make_unique<rtrs::ServerPath>(session, *this, options)} {
  if (is_memory()) path_->set_regions(card_.get());
  handler_ = &path_->add(0, *pair_);
}

MemoryLink::~MemoryLink() = default;

bool MemoryLink::provide_chunks() {
  path_->set_chunks(chunks_);
  return true;
}

void MemoryLink::on_fenced(rtrs::Complaint why, bool fault) {
  events_.fenced(*this, why, fault);
  in_progress_ ? events_.later([this] { close(); }) : close();
}

bool MemoryLink::say_name(const char* name) {
  in_progress_ = true;
  const rtrs::Complaint complaint = handler_->on_message(
      rtrs::wire::bytes_of(rtrs::wire::encode_info_request(name)), std::nullopt);
  in_progress_ = false;
  if (complaint != nullptr) close();
  return complaint == nullptr;
}

void MemoryLink::deliver_to_server() {
  const ToServer message = std::move(to_server.front());
  to_server.pop_front();
  const std::size_t chunk = message.permit * std::size_t{session_.options().chunk_size()};
  if (!message.bytes.empty())
    std::memcpy(chunks_.data() + chunk, message.bytes.data(), message.bytes.size());
  in_progress_ = true;
  const rtrs::Complaint complaint = handler_->on_write_with_immediate(
      message.immediate, static_cast<std::uint32_t>(message.bytes.size()));
  if (complaint == nullptr && session_.has_pending()) session_.judge_pending();
  in_progress_ = false;
  if (complaint != nullptr)
    throw std::runtime_error{std::string{"the server complains: "} + complaint};
}

/// As rtrs::PathHost does it: first the keys, and then the session hears of it.
void MemoryLink::close() {
  if (!std::exchange(server_lives, false)) return;
  to_server.clear();
  path_->close();
  if (!is_memory()) return release();
  card_->retire_all([this] { events_.later([this] { release(); }); });
}

void MemoryLink::release() {
  released = true;
  card_->end();  // what was exposed meanwhile goes with the last connection
  session_.on_path_closed(*path_);
  events_.released(*this);
}

}  // namespace sim
