// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/kernel/netlink.hpp"

#include <linux/nbd-netlink.h>
#include <netlink/attr.h>
#include <netlink/errno.h>
#include <netlink/genl/ctrl.h>
#include <netlink/genl/genl.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "bridge/kernel/attachment.hpp"

namespace rnbd::kernel {
namespace {

using rtrs::Failure;

/// The kernel's requests are multiples of it.
constexpr std::uint64_t kBlock = 512;

struct FreeMessage {
  void operator()(nl_msg* message) const { nlmsg_free(message); }
};
using MessagePointer = std::unique_ptr<nl_msg, FreeMessage>;

struct Answer {
  int error = 0;
  std::optional<unsigned> index;
};

int take_index(nl_msg* message, void* context) {
  const nlattr* found = nlmsg_find_attr(nlmsg_hdr(message), GENL_HDRLEN, NBD_ATTR_INDEX);
  if (found != nullptr && nla_len(found) >= 4) {
    static_cast<Answer*>(context)->index = nla_get_u32(found);
  }
  return NL_OK;
}

int take_error(sockaddr_nl*, nlmsgerr* error, void* context) {
  static_cast<Answer*>(context)->error = -error->error;
  return NL_STOP;
}

std::uint8_t number_of(Command command) {
  switch (command) {
    case Command::connect:
      return NBD_CMD_CONNECT;
    case Command::reconfigure:
      return NBD_CMD_RECONFIGURE;
    case Command::disconnect:
      return NBD_CMD_DISCONNECT;
  }
  return NBD_CMD_UNSPEC;
}

bool put_sockets(nl_msg* to, const Message& message) {
  if (message.sockets.empty()) return true;
  nlattr* const all = nla_nest_start(to, NBD_ATTR_SOCKETS);
  bool good = all != nullptr;
  for (const int fd : message.sockets) {
    nlattr* const item = nla_nest_start(to, NBD_SOCK_ITEM);
    good = good && item != nullptr &&
           nla_put_u32(to, NBD_SOCK_FD, static_cast<std::uint32_t>(fd)) == 0;
    if (good) nla_nest_end(to, item);
  }
  if (good) nla_nest_end(to, all);
  return good;
}

/// NBD_ATTR_TIMEOUT is left out, because with it the kernel ends living sockets when storage is
/// slow.
bool encode(nl_msg* to, int family, const Message& message) {
  const auto u64 = [to](int type, std::uint64_t value) {
    return nla_put_u64(to, type, value) == 0;
  };
  bool good = genlmsg_put(to, NL_AUTO_PORT, NL_AUTO_SEQ, family, 0, 0, number_of(message.command),
                          NBD_GENL_VERSION) != nullptr;
  if (message.index) good = good && nla_put_u32(to, NBD_ATTR_INDEX, *message.index) == 0;
  if (message.command == Command::disconnect) return good;
  good = good && nla_put_string(to, NBD_ATTR_BACKEND_IDENTIFIER, message.identifier.c_str()) == 0;
  if (message.size != 0) good = good && u64(NBD_ATTR_SIZE_BYTES, message.size);
  if (message.command == Command::connect) {
    good = good && u64(NBD_ATTR_BLOCK_SIZE_BYTES, kBlock) &&
           u64(NBD_ATTR_SERVER_FLAGS, message.flags) && u64(NBD_ATTR_CLIENT_FLAGS, 0) &&
           u64(NBD_ATTR_DEAD_CONN_TIMEOUT, message.dead_timeout);
  }
  return good && put_sockets(to, message);
}

std::string device_of(const Message& message) {
  return message.index ? "/dev/nbd" + std::to_string(*message.index) : "a device of the kernel";
}

Failure explain(int error, const Message& message) {
  const std::string device = device_of(message);
  if (error == EPERM) {
    return {error, "the kernel lets nobody map or unmap " + device +
                       " without CAP_SYS_ADMIN: start this as root, or with that capability"};
  }
  if (error == EBUSY && message.command == Command::connect) {
    return {error, message.index ? device + " is mapped, or somebody still has it open: choose " +
                                       "another number, or write --kernel nbd without a number: " +
                                       "then the kernel takes a device that is free"
                                 : "no /dev/nbdN is free: end those that are not needed any more"};
  }
  if (error == EINVAL && message.command == Command::reconfigure) {
    return {error, device + " is not mapped any more, or is another disk"};
  }
  return {error, "the kernel refuses " + device + ": " + std::strerror(error)};
}

}  // namespace

void Netlink::Close::operator()(nl_sock* socket) const { nl_socket_free(socket); }

tl::expected<Netlink, Failure> Netlink::open() {
  std::unique_ptr<nl_sock, Close> socket{nl_socket_alloc()};
  if (socket == nullptr) return tl::unexpected(Failure{ENOMEM, "there is no memory for netlink"});
  if (const int error = genl_connect(socket.get()); error < 0) {
    const int number = errno;
    return tl::unexpected(
        Failure{number, std::string{"cannot open a netlink socket: "} + nl_geterror(error)});
  }
  const int family = genl_ctrl_resolve(socket.get(), NBD_GENL_FAMILY_NAME);
  if (family < 0) {
    return tl::unexpected(Failure{
        ENOENT,
        "the kernel has no nbd driver: load it with `modprobe nbd`, or install the kernel's "
        "package that has that module"});
  }
  return Netlink{std::move(socket), family};
}

tl::expected<unsigned, Failure> Netlink::send(const Message& message) {
  if (const std::string wrong = complaint_about(message); !wrong.empty()) {
    return tl::unexpected(Failure{EINVAL, "a message to the kernel is not sent: " + wrong});
  }
  const MessagePointer encoded{nlmsg_alloc()};
  if (encoded == nullptr || !encode(encoded.get(), family_, message)) {
    return tl::unexpected(Failure{ENOMEM, "there is no memory for netlink"});
  }
  Answer answer;
  nl_socket_modify_cb(socket_.get(), NL_CB_VALID, NL_CB_CUSTOM, take_index, &answer);
  nl_socket_modify_err_cb(socket_.get(), NL_CB_CUSTOM, take_error, &answer);
  int error = nl_send_auto(socket_.get(), encoded.get());
  if (error >= 0) error = nl_wait_for_ack(socket_.get());
  if (answer.error != 0) return tl::unexpected(explain(answer.error, message));
  if (error < 0) {
    return tl::unexpected(Failure{EIO, std::string{"netlink: "} + nl_geterror(error)});
  }
  return answer.index ? *answer.index : message.index.value_or(0);
}

}  // namespace rnbd::kernel
