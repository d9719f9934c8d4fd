// SPDX-License-Identifier: BSD-3-Clause
// Counts the large buffers that a session over TLS takes and gives back while it sends.
#include <doctest/doctest.h>
#include <malloc.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "rdma/transport/tls/session.hpp"
#include "tests/unit/transport/tls_wire.hpp"

namespace rtrs::test::tls_memory_test {
namespace {

constexpr std::size_t kLarge = 16 * 1024;  // bytes; more than a handshake takes
constexpr std::size_t kData = 1024 * 1024;

// Of this thread.
thread_local unsigned taken = 0;
thread_local int held = 0;  ///< taken and not given back

bool is_large(void* memory) { return malloc_usable_size(memory) >= kLarge; }

/// A client's session that sends into a socket whose other end reads only when told to.
class Sender {
 public:
  explicit Sender(const std::array<std::shared_ptr<const tls::Credentials>, 2>& both)
      : wire_{both} {
    wire_.shake_hands();
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends_.data()) == 0);
    const int little = 64 * 1024;  // bytes
    REQUIRE(setsockopt(ends_[0], SOL_SOCKET, SO_SNDBUF, &little, sizeof(little)) == 0);
  }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  ~Sender() {
    close(ends_[0]);
    close(ends_[1]);
  }

  /// Until the socket is full, or all is sent.
  void send() {
    const iovec piece{data_.data() + sent_, data_.size() - sent_};
    const ssize_t n = session().send(ends_[0], {&piece, 1});
    if (n == -EAGAIN) return;
    REQUIRE(n > 0);
    sent_ += static_cast<std::size_t>(n);
  }
  /// The first bytes of the data, as a message. False: the socket is full.
  bool send_little() {
    const iovec piece{data_.data(), 100};
    return session().send(ends_[0], {&piece, 1}) == 100 && !session().has_output();
  }
  /// Sends what the session kept, and reads, until it keeps nothing.
  void drain() {
    while (read(), session().has_output()) REQUIRE(session().flush(ends_[0]) == 0);
  }
  /// Times that the socket was full.
  unsigned send_all() {
    unsigned full = 0;
    while (sent_ < data_.size()) {
      send();
      full += is_full();
      drain();
    }
    sent_ = 0;
    return full;
  }
  bool is_full() { return session().has_output(); }

 private:
  tls::Session& session() { return *wire_.sessions[0]; }
  void read() {
    while (::recv(ends_[1], room_.data(), room_.size(), 0) > 0) continue;
  }

  TlsWire wire_;
  std::array<int, 2> ends_{};
  std::vector<std::byte> data_ = std::vector<std::byte>(kData);
  std::vector<std::byte> room_ = std::vector<std::byte>(64 * 1024);
  std::size_t sent_ = 0;
};

std::array<std::shared_ptr<const tls::Credentials>, 2> credentials() {
  const KeyDirectory keys;
  const TlsKeys key = keys.psk("host1", hex_key());
  return {tls::Credentials::load(key, tls::Role::client).value(),
          tls::Credentials::load(key, tls::Role::server).value()};
}

TEST_CASE("TLS: a socket that is full again and again costs no new buffer") {
  Sender sender{credentials()};
  sender.send_all();
  const unsigned before = taken;
  const unsigned full = sender.send_all();
  const unsigned after = taken;
  CHECK(full > 1);
  CHECK(after - before == 0);
}

TEST_CASE("TLS: a connection holds a buffer while its socket is full, and none when it is idle") {
  const auto both = credentials();
  std::vector<std::unique_ptr<Sender>> senders;
  for (unsigned i = 0; i < 8; ++i) senders.push_back(std::make_unique<Sender>(both));
  senders.front()->send_all();  // the thread has its buffer then
  const int idle = held;
  for (const auto& sender : senders) {
    sender->send();
    CHECK(sender->is_full());
  }
  const int full = held;
  for (const auto& sender : senders) sender->drain();
  const int drained = held;
  CHECK(full == idle + 7);
  CHECK(drained == idle);
}

TEST_CASE("TLS: a short message costs no large buffer where a full socket holds the thread's") {
  const auto both = credentials();
  Sender blocked{both}, other{both};
  blocked.send_all();  // the thread has its buffer then
  blocked.send();
  CHECK(blocked.is_full());
  const unsigned before = taken;
  const bool sent = other.send_little();
  const unsigned after = taken;
  CHECK(sent);
  CHECK(after - before == 0);
  blocked.drain();
}

}  // namespace

void on_taken(void* memory) {
  if (!is_large(memory)) return;
  ++taken;
  ++held;
}
void on_given_back(void* memory) {
  if (memory != nullptr && is_large(memory)) --held;
}

}  // namespace rtrs::test::tls_memory_test

// All forms that operator delete below gives back, or a sanitizer finds another one's memory there.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  void* const memory = std::malloc(size);
  if (memory != nullptr) rtrs::test::tls_memory_test::on_taken(memory);
  return memory;
}
void* operator new(std::size_t size) {
  void* const memory = operator new(size, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc{};
  return memory;
}
void operator delete(void* memory) noexcept {
  rtrs::test::tls_memory_test::on_given_back(memory);
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
