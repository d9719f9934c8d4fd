// SPDX-License-Identifier: BSD-3-Clause
// A driver of vhost-user-blk in this process: the messages of a front-end, memory in a memfd, and
// split rings as a guest has them. It shares nothing with the device's own code.
#pragma once

#include <linux/virtio_blk.h>
#define VIRTIO_RING_NO_LEGACY  // no C++
#include <linux/virtio_ring.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace vhostload {

[[noreturn]] inline void die(const std::string& what) {
  throw std::runtime_error{what + ": " + std::strerror(errno)};
}

constexpr std::uint64_t bit(unsigned number) { return std::uint64_t{1} << number; }

/// The requests of a front-end.
enum : std::uint32_t {
  kGetFeatures = 1,
  kSetFeatures = 2,
  kSetOwner = 3,
  kSetMemTable = 5,
  kSetVringNum = 8,
  kSetVringAddr = 9,
  kSetVringBase = 10,
  kGetVringBase = 11,
  kSetVringKick = 12,
  kSetVringCall = 13,
  kSetVringErr = 14,
  kGetProtocolFeatures = 15,
  kSetProtocolFeatures = 16,
  kGetQueueNum = 17,
  kSetVringEnable = 18,
  kGetConfig = 24,
};

/// A descriptor of a file; closed at its end.
class File {
 public:
  explicit File(int fd) : fd_{fd} {
    if (fd < 0) die("a descriptor");
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

/// The connection to a device.
class Wire {
 public:
  explicit Wire(const std::string& path) : socket_{::socket(AF_UNIX, SOCK_STREAM, 0)} {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) < 0)
      die(path);
    const timeval limit{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }

  int socket() const { return socket_.get(); }
  /// False: the device has hung up.
  bool send(std::uint32_t type, const std::string& payload, const std::vector<int>& files = {},
            std::uint32_t flags = 1) const {
    const std::array<std::uint32_t, 3> head{type, flags,
                                            static_cast<std::uint32_t>(payload.size())};
    return send_raw(std::string{reinterpret_cast<const char*>(head.data()), sizeof(head)} + payload,
                    files);
  }
  bool send_raw(std::string bytes, const std::vector<int>& files = {}) const {
    iovec piece{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    std::vector<char> control(CMSG_SPACE(files.size() * sizeof(int)));
    if (!files.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
      std::memcpy(CMSG_DATA(head), files.data(), files.size() * sizeof(int));
    }
    return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  /// The payload of the next answer; throws when the device has hung up.
  std::string receive() const {
    std::array<std::uint32_t, 3> head{};
    take(head.data(), sizeof(head));
    std::string payload(head[2], '\0');
    take(payload.data(), payload.size());
    return payload;
  }
  std::uint64_t ask(std::uint32_t type, const std::string& payload = "") const {
    send(type, payload);
    const std::string answer = receive();
    std::uint64_t value = 0;
    std::memcpy(&value, answer.data(), std::min(answer.size(), sizeof(value)));
    return value;
  }
  /// True: the device hangs up within ten seconds.
  bool hears_the_end() const {
    pollfd polled{socket_.get(), POLLRDHUP, 0};
    return ::poll(&polled, 1, 10'000) > 0;
  }

 private:
  void take(void* into, std::size_t size) const {
    if (size == 0) return;
    const ssize_t got = ::recv(socket_.get(), into, size, MSG_WAITALL);
    if (got < 0) die("the device does not answer");
    if (got != static_cast<ssize_t>(size)) throw std::runtime_error{"the device has hung up"};
  }

  File socket_;
};

template <class... Values>
std::string packed(const Values&... values) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&values), sizeof(values)), ...);
  return bytes;
}

struct Options {
  std::string path;
  unsigned queues = 1;
  std::uint16_t ring = 256;
  std::size_t data = 1U << 20;  ///< bytes, for buffers
  bool event_index = true;
  bool version1 = true;
  bool flush = true;
  bool sleeping_files = false;  ///< kicks and calls are files that block
};

/// The parts of a ring, one behind the other, the used part at a page.
struct Parts {
  vring_desc* desc = nullptr;
  vring_avail* avail = nullptr;
  vring_used* used = nullptr;

  static std::size_t place_of_used(std::size_t size) {
    return (sizeof(vring_desc) * size + sizeof(std::uint16_t) * (3 + size) + 4095) / 4096 * 4096;
  }
  static Parts at(std::byte* memory, std::size_t size) {
    return {reinterpret_cast<vring_desc*>(memory),
            reinterpret_cast<vring_avail*>(memory + sizeof(vring_desc) * size),
            reinterpret_cast<vring_used*>(memory + place_of_used(size))};
  }
};

/// A ring and its eventfds.
struct Ring {
  Ring(std::byte* memory, std::uint16_t ring_size, unsigned ring_index, bool sleeping)
      : size{ring_size},
        index{ring_index},
        kick{::eventfd(0, sleeping ? 0 : EFD_NONBLOCK)},
        call{::eventfd(0, sleeping ? 0 : EFD_NONBLOCK)},
        error{::eventfd(0, EFD_NONBLOCK)} {
    parts = Parts::at(memory, size);
  }
  static std::size_t bytes(std::uint16_t size) {
    return Parts::place_of_used(size) + sizeof(std::uint16_t) * 3 + sizeof(vring_used_elem) * size;
  }
  /// The driver waits for that number of ends.
  std::uint16_t& used_event() const { return parts.avail->ring[size]; }
  /// The device waits for that number of chains.
  std::uint16_t& available_event() const {
    return *reinterpret_cast<std::uint16_t*>(&parts.used->ring[size]);
  }

  /// Descriptors from `first` on as a chain that the device finds after publish().
  void offer(std::uint16_t first) { parts.avail->ring[next++ % size] = first; }
  /// True: the device wants a kick.
  bool publish(bool event_index) {
    const std::uint16_t before = published;
    __atomic_store_n(&parts.avail->idx, next, __ATOMIC_RELEASE);
    published = next;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (event_index) return vring_need_event(available_event(), next, before) != 0;
    return (__atomic_load_n(&parts.used->flags, __ATOMIC_RELAXED) & VRING_USED_F_NO_NOTIFY) == 0;
  }
  void do_kick() const { ::eventfd_write(kick.get(), 1); }
  bool has_used() const { return __atomic_load_n(&parts.used->idx, __ATOMIC_ACQUIRE) != taken; }
  vring_used_elem take_used() { return parts.used->ring[taken++ % size]; }
  /// Waits for the device's call. False: it did not come.
  bool wait(bool event_index, int timeout_ms = 20'000) {
    for (;;) {
      if (event_index) {
        __atomic_store_n(&used_event(), taken, __ATOMIC_RELAXED);
      } else {
        __atomic_store_n(&parts.avail->flags, 0, __ATOMIC_RELAXED);
      }
      __atomic_thread_fence(__ATOMIC_SEQ_CST);
      if (has_used()) break;
      // The device may make it a file that does not block.
      pollfd polled{call.get(), POLLIN, 0};
      if (::poll(&polled, 1, timeout_ms) <= 0) return false;
      eventfd_t ignored = 0;
      ::eventfd_read(call.get(), &ignored);
    }
    if (!event_index)
      __atomic_store_n(&parts.avail->flags, VRING_AVAIL_F_NO_INTERRUPT, __ATOMIC_RELAXED);
    return true;
  }

  std::uint16_t size;
  unsigned index;
  Parts parts;
  File kick, call, error;
  std::uint16_t next = 0;       ///< chains that were offered
  std::uint16_t published = 0;  ///< of them
  std::uint16_t taken = 0;      ///< ends that were seen
};

/// A device that is set up: memory, rings that run, and its configuration.
///
/// Guest addresses begin at kGuest. The memory has the rings, then a page of heads for each ring,
/// then the data.
class Driver {
 public:
  static constexpr std::uint64_t kGuest = std::uint64_t{1} << 32;
  static constexpr std::size_t kHead = 32;  ///< bytes of a request's header, range and status

  explicit Driver(const Options& options) : options_{options}, wire_{options.path} {
    const std::size_t ring = round_up(Ring::bytes(options.ring));
    const std::size_t heads = round_up(std::size_t{options.ring} * kHead);
    data_ = options.queues * (ring + heads);
    size_ = data_ + round_up(options.data);
    file_ = ::memfd_create("vhostload", MFD_CLOEXEC);
    if (file_ < 0 || ::ftruncate(file_, static_cast<off_t>(size_)) != 0) die("memfd");
    memory_ = static_cast<std::byte*>(
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0));
    if (memory_ == MAP_FAILED) die("mmap");
    std::memset(memory_, 0, size_);
    for (unsigned i = 0; i < options.queues; ++i) {
      rings_.push_back(std::make_unique<Ring>(memory_ + i * (ring + heads), options.ring, i,
                                              options.sleeping_files));
      heads_.push_back(memory_ + i * (ring + heads) + ring);
    }
    agree();
    send_memory();
    for (const auto& each : rings_) start(*each);
  }
  ~Driver() {
    ::munmap(memory_, size_);
    ::close(file_);
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  Wire& wire() { return wire_; }
  const virtio_blk_config& config() const { return config_; }
  std::uint64_t offered() const { return offered_; }
  std::uint64_t bytes() const { return config_.capacity * 512; }
  Ring& ring(unsigned queue = 0) { return *rings_.at(queue); }
  std::byte* data() const { return memory_ + data_; }
  std::byte* head(unsigned slot, unsigned queue = 0) const {
    return heads_.at(queue) + slot * kHead;
  }
  std::uint64_t guest(const std::byte* place) const {
    return kGuest + static_cast<std::uint64_t>(place - memory_);
  }
  int file() const { return file_; }
  /// The address of the memory in this process.
  std::uint64_t user() const { return reinterpret_cast<std::uint64_t>(memory_); }
  std::size_t size() const { return size_; }
  bool event_index() const { return options_.event_index; }

  void send_memory() const {
    wire_.send(kSetMemTable,
               packed(std::uint32_t{1}, std::uint32_t{0}, kGuest, std::uint64_t{size_}, user(),
                      std::uint64_t{0}),
               {file_});
  }
  void start(Ring& ring, std::uint32_t base = 0) {
    const std::uint32_t index = ring.index;
    const auto address = [](const void* place) { return reinterpret_cast<std::uint64_t>(place); };
    wire_.send(kSetVringNum, packed(index, std::uint32_t{ring.size}));
    wire_.send(kSetVringBase, packed(index, base));
    wire_.send(kSetVringAddr,
               packed(index, std::uint32_t{0}, address(ring.parts.desc), address(ring.parts.used),
                      address(ring.parts.avail), std::uint64_t{0}));
    wire_.send(kSetVringErr, packed(std::uint64_t{index}), {ring.error.get()});
    wire_.send(kSetVringCall, packed(std::uint64_t{index}), {ring.call.get()});
    wire_.send(kSetVringKick, packed(std::uint64_t{index}), {ring.kick.get()});
    wire_.send(kSetVringEnable, packed(index, std::uint32_t{1}));
    wire_.ask(kGetFeatures);  // all of it has been carried out
  }
  /// The number of chains that the device has taken; they have ended.
  std::uint32_t stop(Ring& ring) {
    return static_cast<std::uint32_t>(wire_.ask(kGetVringBase, packed(ring.index, 0U)) >> 32);
  }

  /// A request as three descriptors from 3 x slot on, with the data in place.
  void describe(unsigned slot, std::uint32_t type, std::uint64_t sector, std::byte* data,
                std::uint32_t length, bool device_writes, unsigned queue = 0) {
    std::byte* const head = this->head(slot, queue);
    const virtio_blk_outhdr header{.type = type, .ioprio = 0, .sector = sector};
    std::memcpy(head, &header, sizeof(header));
    head[16] = std::byte{0xFF};
    const auto first = static_cast<std::uint16_t>(3 * slot);
    vring_desc* const table = ring(queue).parts.desc;
    table[first] = {guest(head), sizeof(header), VRING_DESC_F_NEXT,
                    static_cast<std::uint16_t>(length != 0 ? first + 1 : first + 2)};
    const auto flags =
        static_cast<std::uint16_t>(VRING_DESC_F_NEXT | (device_writes ? VRING_DESC_F_WRITE : 0));
    table[first + 1] = {guest(data), length, flags, static_cast<std::uint16_t>(first + 2)};
    table[first + 2] = {guest(head + 16), 1, VRING_DESC_F_WRITE, 0};
  }
  std::uint8_t status(unsigned slot, unsigned queue = 0) const {
    return static_cast<std::uint8_t>(head(slot, queue)[16]);
  }
  /// Carries out what was described, and waits. 0xFF: it has not ended.
  std::uint8_t carry_out(unsigned slot = 0, unsigned queue = 0) {
    Ring& ring = this->ring(queue);
    ring.offer(static_cast<std::uint16_t>(3 * slot));
    if (ring.publish(options_.event_index)) ring.do_kick();
    if (!ring.wait(options_.event_index, 5'000)) return 0xFF;
    ring.take_used();
    return status(slot, queue);
  }

 private:
  static std::size_t round_up(std::size_t size) { return (size + 4095) / 4096 * 4096; }

  void agree() {
    constexpr std::uint64_t kProtocol = bit(30);
    offered_ = wire_.ask(kGetFeatures);
    if ((wire_.ask(kGetProtocolFeatures) & bit(9)) == 0)
      throw std::runtime_error{"the device does not show its configuration"};
    wire_.send(kSetProtocolFeatures, packed(bit(0) | bit(3) | bit(9)));
    wire_.send(kSetOwner, "");
    std::uint64_t wanted =
        offered_ & (kProtocol | bit(VIRTIO_BLK_F_DISCARD) | bit(VIRTIO_BLK_F_RO) |
                    bit(VIRTIO_BLK_F_WRITE_ZEROES) | bit(28));
    if (options_.event_index) wanted |= bit(29);
    if (options_.version1) wanted |= bit(32);
    if (options_.flush) wanted |= offered_ & bit(VIRTIO_BLK_F_FLUSH);
    wire_.send(kSetFeatures, packed(wanted));
    constexpr std::uint32_t kSize = 60;
    wire_.send(kGetConfig, packed(0U, kSize, 0U) + std::string(kSize, '\0'));
    const std::string answer = wire_.receive();
    if (answer.size() != 12 + kSize) throw std::runtime_error{"the configuration has another size"};
    std::memcpy(&config_, answer.data() + 12, kSize);
  }

  const Options options_;
  Wire wire_;
  int file_ = -1;
  std::byte* memory_ = nullptr;
  std::size_t size_ = 0;
  std::size_t data_ = 0;
  std::vector<std::unique_ptr<Ring>> rings_;
  std::vector<std::byte*> heads_;
  virtio_blk_config config_{};
  std::uint64_t offered_ = 0;
};

}  // namespace vhostload
