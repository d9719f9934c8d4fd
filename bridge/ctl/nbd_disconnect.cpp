// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/nbd_disconnect.hpp"

#include <linux/genetlink.h>
#include <linux/nbd-netlink.h>
#include <linux/netlink.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

namespace rnbd {
namespace {

using Bytes = std::string;

template <class Header>
void append(Bytes& bytes, const Header& header) {
  const auto* begin = reinterpret_cast<const char*>(&header);
  bytes.append(begin, sizeof(header));
}

void append_attribute(Bytes& bytes, std::uint16_t type, const void* value, std::size_t size) {
  append(bytes, nlattr{static_cast<std::uint16_t>(NLA_HDRLEN + size), type});
  bytes.append(static_cast<const char*>(value), size);
  bytes.resize(NLA_ALIGN(bytes.size()));
}

/// A call of a generic family, with one attribute.
Bytes call_of(std::uint16_t family, std::uint8_t command, std::uint16_t type, const void* value,
              std::size_t size) {
  Bytes bytes;
  append(bytes, nlmsghdr{0, family, NLM_F_REQUEST | NLM_F_ACK, 1, 0});
  append(bytes, genlmsghdr{command, 1, 0});
  append_attribute(bytes, type, value, size);
  const auto length = static_cast<std::uint32_t>(bytes.size());
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes;
}

/// A socket to the kernel's generic netlink.
class Genetlink {
 public:
  Genetlink() : fd_{::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC)} {}
  ~Genetlink() {
    if (fd_ >= 0) ::close(fd_);
  }
  Genetlink(const Genetlink&) = delete;
  Genetlink& operator=(const Genetlink&) = delete;

  /// 0 or an errno. `answer`: the message before the acknowledgement, if there is one.
  int call(const Bytes& message, Bytes& answer) const {
    if (fd_ < 0) return errno;
    if (::send(fd_, message.data(), message.size(), 0) < 0) return errno;
    for (;;) {
      Bytes bytes(8192, '\0');
      const ssize_t size = ::recv(fd_, bytes.data(), bytes.size(), 0);
      if (size < 0) return errno;
      bytes.resize(static_cast<std::size_t>(size));
      nlmsghdr header{};
      if (bytes.size() < sizeof(header)) return EPROTO;
      std::memcpy(&header, bytes.data(), sizeof(header));
      if (header.nlmsg_type != NLMSG_ERROR) {
        answer = std::move(bytes);
        continue;
      }
      int error = 0;
      if (bytes.size() < NLMSG_HDRLEN + sizeof(error)) return EPROTO;
      std::memcpy(&error, bytes.data() + NLMSG_HDRLEN, sizeof(error));
      return -error;
    }
  }

 private:
  int fd_;
};

/// The number of a family in the answer to CTRL_CMD_GETFAMILY; 0: there is none.
std::uint16_t family_in(const Bytes& answer) {
  std::size_t at = NLMSG_HDRLEN + GENL_HDRLEN;
  for (nlattr attribute{}; at + NLA_HDRLEN <= answer.size();) {
    std::memcpy(&attribute, answer.data() + at, sizeof(attribute));
    std::uint16_t family = 0;
    if (attribute.nla_len < NLA_HDRLEN) return 0;
    if (attribute.nla_type == CTRL_ATTR_FAMILY_ID &&
        at + NLA_HDRLEN + sizeof(family) <= answer.size()) {
      std::memcpy(&family, answer.data() + at + NLA_HDRLEN, sizeof(family));
      return family;
    }
    at += NLA_ALIGN(attribute.nla_len);
  }
  return 0;
}

int disconnect(std::uint32_t index) {
  const Genetlink netlink;
  Bytes answer;
  const Bytes question = call_of(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME,
                                 NBD_GENL_FAMILY_NAME, sizeof(NBD_GENL_FAMILY_NAME));
  if (const int error = netlink.call(question, answer); error != 0) return error;
  const std::uint16_t family = family_in(answer);
  if (family == 0) return ENOENT;
  return netlink.call(call_of(family, NBD_CMD_DISCONNECT, NBD_ATTR_INDEX, &index, sizeof(index)),
                      answer);
}

}  // namespace

std::string disconnect_kernel_device(const std::string& device) {
  constexpr std::string_view kDriver = "nbd";
  std::uint32_t index = 0;
  const char* const end = device.data() + device.size();
  const bool named = device.starts_with(kDriver);
  const auto [rest, wrong] =
      std::from_chars(device.data() + (named ? kDriver.size() : 0), end, index);
  if (!named || wrong != std::errc{} || rest != end) return "'" + device + "' is no device nbdN";
  const int error = disconnect(index);
  if (error == 0) return "";
  const std::string reason = strerrordesc_np(error);
  if (error == EPERM) return device + ": " + reason + "; only root may take it away";
  return device + ": the kernel does not take it away: " + reason;
}

}  // namespace rnbd
