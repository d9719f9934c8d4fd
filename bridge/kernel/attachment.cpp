// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/kernel/attachment.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace rnbd::kernel {
namespace {

// Traps of the kernel's driver. With two sockets it kills living ones when storage is slow. A size
// in a message freezes the queue before the sockets of the same message are added; on 6.12 it stays
// frozen for ever. Only the identifier keeps the device from getting another disk.
constexpr Carried kConnect{Command::connect, 1, true, true};
constexpr Carried kRejoin{Command::reconfigure, 1, true, false};
constexpr Carried kResize{Command::reconfigure, 0, true, true};
constexpr Carried kDisconnect{Command::disconnect, 0, false, false};

constexpr std::array kRows{
    Row{State::absent, Event::found_none, State::connecting, Action::tell, kConnect},
    Row{State::absent, Event::found_own, State::connecting, Action::tell, kRejoin},
    Row{State::absent, Event::found_kept, State::serving, Action::resume},
    Row{State::absent, Event::found_other, State::absent, Action::refuse},
    Row{State::absent, Event::stop, State::absent, Action::tell, kDisconnect},
    Row{State::connecting, Event::joined, State::serving, Action::nothing},
    Row{State::connecting, Event::refused, State::absent, Action::complain},
    Row{State::serving, Event::grown, State::serving, Action::tell, kResize},
    Row{State::serving, Event::shrunk, State::serving, Action::complain},
    Row{State::serving, Event::link_lost, State::absent, Action::look},
    Row{State::serving, Event::unmapped, State::absent, Action::leave},
    Row{State::serving, Event::stop, State::absent, Action::tell, kDisconnect},
    Row{State::serving, Event::stop_to_hand, State::draining, Action::drain},
    Row{State::draining, Event::drained, State::handed_over, Action::hand},
    Row{State::draining, Event::late, State::absent, Action::drop},
    Row{State::draining, Event::link_lost, State::absent, Action::drop},
    Row{State::draining, Event::unmapped, State::absent, Action::leave},
};

}  // namespace

std::span<const Row> attachment_rows() { return kRows; }

const Row* Attachment::on(Event event) {
  const auto row = std::ranges::find_if(
      rows_, [&](const Row& one) { return one.from == state_ && one.event == event; });
  if (row == rows_.end()) return nullptr;
  state_ = row->to;
  return &*row;
}

Message message_of(const Carried& carried, const Message& all) {
  Message message = all;
  message.command = carried.command;
  message.sockets.resize(std::min<std::size_t>(carried.sockets, all.sockets.size()));
  if (!carried.identifier) message.identifier.clear();
  if (!carried.size) message.size = 0;
  return message;
}

std::string complaint_about(const Message& message) {
  const bool connects = message.command == Command::connect;
  if (message.command == Command::disconnect) return message.index ? "" : "no device is named";
  if (message.identifier.empty()) return "nothing says which disk it is";
  if (message.sockets.size() > 1) return "more than one socket";
  if (connects && (message.sockets.empty() || message.size == 0)) return "no socket or no size";
  if (connects) return "";
  if (!message.index) return "no device is named";
  if (message.sockets.empty() == (message.size == 0)) return "a size and a socket are two messages";
  return "";
}

}  // namespace rnbd::kernel
