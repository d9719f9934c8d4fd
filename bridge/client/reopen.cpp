// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/reopen.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

constexpr const char* kEvicted = "the server's operator has closed it: its session was evicted";

std::string changed(const char* what, std::uint64_t was, std::uint64_t is) {
  return std::string{what} + " was " + std::to_string(was) + " and is " + std::to_string(is);
}

std::string yes_or_no(const char* what, bool was) {
  return std::string{what} + (was ? " before and is not now" : " now and was not before");
}

bool known(const wire::Uuid& uuid) { return uuid != wire::Uuid{}; }

/// The same server process has had it open all the time, so it is the same storage and has merely
/// grown. Requests for its old size mean the same as before, unless they reached over its end.
bool has_grown(const DeviceGeometry& was, const DeviceGeometry& is) {
  const bool kept_open = is.witness.server_life != 0 &&
                         is.witness.server_life == was.witness.server_life && known(is.export_uuid);
  return kept_open && is.size > was.size && was.size % was.block == 0;
}

/// Requests in flight must not overwrite later writes of another client. A server that has lost its
/// records, or keeps none, starts its numbers again with 1. Then only the session with number 1 is
/// known to be the first writer since.
std::string change_of_writer(std::uint64_t was, std::uint64_t is) {
  if (was >> 32 == is >> 32) {
    if (was == is) return "";
    return "another client has had it open for writing meanwhile";
  }
  if (static_cast<std::uint32_t>(is) <= 1) return "";
  return "another client has opened it for writing since the server began its records anew";
}

constexpr const char* kOlderServer =
    "it is a clone of the server, or was set back, and is not used";

std::string in_words(int error) {
  const char* text = strerrordesc_np(error);
  return text != nullptr ? text : "Unknown error";
}

}  // namespace

bool is_outdated(std::uint64_t was, std::uint64_t found) {
  const bool knew_a_writer = was >> 32 != 0;
  if (!knew_a_writer || found == 0) return false;
  return was >> 32 != found >> 32 || found < was;
}

std::string change_of_device(const DeviceGeometry& was, const DeviceGeometry& is) {
  if (was.own_peer != is.own_peer) {
    return yes_or_no("it was served with the extension of rnbdkit", was.own_peer);
  }
  if (known(was.export_uuid) && known(is.export_uuid) && was.export_uuid != is.export_uuid) {
    return "it is other storage (its export UUID changed)";
  }
  std::string writer = change_of_writer(was.witness.writer_serial, is.witness.writer_serial);
  if (!writer.empty() && is.evicted) {
    return kEvicted;
  }
  if (!writer.empty()) return writer;
  const bool grown = has_grown(was, is);
  if (was.size != is.size && !grown) return changed("its size", was.size, is.size);
  if (was.padded_size != is.padded_size && !grown) {
    return changed("its size in whole sectors", was.padded_size, is.padded_size);
  }
  if (was.block != is.block) return changed("its logical block size", was.block, is.block);
  if (was.physical_block != is.physical_block) {
    return changed("its physical block size", was.physical_block, is.physical_block);
  }
  if (was.read_only != is.read_only) return yes_or_no("it is read-only", was.read_only);
  // A larger limit does no harm: requests were made for the old one.
  if (is.max_io < was.max_io) return changed("its largest request", was.max_io, is.max_io);
  if (is.max_discard < was.max_discard) {
    return changed("its largest discard", was.max_discard, is.max_discard);
  }
  if (is.max_write_zeroes < was.max_write_zeroes) {
    return changed("its largest zeroing", was.max_write_zeroes, is.max_write_zeroes);
  }
  // Users were told that they may rely on these.
  if (was.can_flush && !is.can_flush) return "its storage no longer has a flush";
  if (was.native_fua && !is.native_fua) return "its server no longer honours FUA";
  if (was.flush_covers_all && !is.flush_covers_all) {
    return "a flush no longer covers the writes of all connections";
  }
  return "";
}

ReopenOperation::ReopenOperation(std::vector<ReopenDevice> devices,
                                 const rtrs::SessionLimits& limits)
    : devices_{std::move(devices)}, limits_{limits} {
  request_.is_read = true;
  request_.done = &ReopenOperation::on_done;
  request_.context = this;
  reopened_.reserve(devices_.size());
}

void ReopenOperation::start(rtrs::ClientLane& lane) {
  wire::SessionInfo question;
  question.header = wire::header_of(wire::MessageType::session_info);
  ask(lane, Step::session_info, question, sizeof(wire::SessionInfo));
}

void ReopenOperation::cancel(rtrs::ClientLane& lane) { lane.cancel(request_); }

template <class Message>
void ReopenOperation::ask(rtrs::ClientLane& lane, Step step, const Message& message,
                          std::size_t answer) {
  const rtrs::ConstBytes bytes = rtrs::wire::bytes_of(message);
  static_assert(sizeof(Message) <= rtrs::wire::kMaxUserMessage);
  std::copy(bytes.begin(), bytes.end(), message_.begin());
  step_ = step;
  request_.message = {message_.data(), bytes.size()};
  request_.read_data = {answer_.data(), answer};
  lane.submit(request_);
}

void ReopenOperation::ask_next(rtrs::ClientLane& lane) {
  if (reopened_.size() == devices_.size()) return end();
  wire::Open open = wire::encode_open(device().name, device().options.access);
  if (!own_peer()) return ask(lane, Step::open, open, sizeof(wire::OpenResponse));
  open.flags = wire::kOpenAgain;
  if (device().options.unclaimed) open.flags |= wire::kOpenUnclaimed;
  ask(lane, Step::open, wire::NumberedOpen{open, device().order}, sizeof(wire::OpenResponse));
}

void ReopenOperation::on_done(rtrs::ClientLane& lane, rtrs::Request& request) {
  static_cast<ReopenOperation*>(request.context)->on_answer(lane, request.error);
}

void ReopenOperation::on_answer(rtrs::ClientLane& lane, int error) {
  const rtrs::ConstBytes answer = request_.read_data;
  switch (step_) {
    case Step::session_info: {
      if (error != 0) {
        return fail(error == ESTALE ? EIO : error,
                    "the server does not answer the RNBD session info: " + in_words(error));
      }
      auto info = wire::decode<wire::SessionInfo>(answer, wire::MessageType::session_info_response);
      if (!info || info->version == 0) return fail(EPROTO, "a malformed session info");
      return ask_next(lane);
    }
    case Step::open: {
      if (error != 0 && device().leaving) return take(lane, {});
      if (error != 0) return on_refused(lane, error);
      auto opened = wire::decode<wire::OpenResponse>(answer, wire::MessageType::open_response);
      if (!opened) return fail(EPROTO, "a malformed answer to OPEN of " + in_quotes(device().name));
      opened_ = *opened;
      return on_opened(lane);
    }
    case Step::device_info: {
      if (error != 0) return on_refused(lane, error);
      auto info =
          wire::decode<wire::DeviceInfoResponse>(answer, wire::MessageType::device_info_response);
      if (!info) return fail(EPROTO, "a malformed device info of " + in_quotes(device().name));
      return judge(lane, &*info);
    }
  }
}

void ReopenOperation::on_opened(rtrs::ClientLane& lane) {
  if (device().leaving) return take(lane, {.id = opened_.device_id});
  if (!own_peer()) return judge(lane, nullptr);
  wire::DeviceInfo question;
  question.header = wire::header_of(wire::MessageType::device_info);
  question.device_id = opened_.device_id;
  ask(lane, Step::device_info, question, sizeof(wire::DeviceInfoResponse));
}

void ReopenOperation::judge(rtrs::ClientLane& lane, const wire::DeviceInfoResponse* info) {
  auto is = make_geometry(opened_, info, limits_, device().options.geometry);
  if (!is) {
    return lose(lane,
                {.id = opened_.device_id, .loss = in_quotes(device().name) + " has " + is.error()});
  }
  is->read_only = is->read_only || device().options.export_read_only;
  // A reader does not care. It may share the device now with writers, or no longer.
  if (device().options.access == wire::AccessMode::read_only) {
    is->read_only = device().expected.read_only;
  }
  // Nothing is repeated that others' writes could suffer from; a CLAIM looks at theirs.
  if (device().options.unclaimed) {
    is->witness.writer_serial = device().expected.witness.writer_serial;
  }
  const std::uint64_t known = device().expected.witness.generation;
  const std::uint64_t found = is->witness.found_generation;
  const bool other_storage = is->export_uuid != device().expected.export_uuid;
  const bool reads =
      device().options.unclaimed || device().options.access == wire::AccessMode::read_only;
  // That the records of a server began anew, a writer sees by its number.
  const bool began_anew = found >> 32 != 0 && found >> 32 != known >> 32;
  if (!other_storage && (reads || !began_anew) && is_outdated(known, found)) {
    return lose(lane, {.id = opened_.device_id,
                       .loss = in_quotes(device().name) +
                               ": the server's record of its writers is older than what this "
                               "session has seen",
                       .outdated = true});
  }
  const bool remembered = known >> 32 != 0 && found != 0 && !began_anew;
  const std::string change = change_of_device(device().expected, *is);
  if (!change.empty()) {
    return lose(lane, {.id = opened_.device_id,
                       .loss = in_quotes(device().name) + " is not what it was: " + change,
                       .remembered = remembered});
  }
  take(lane, {.id = opened_.device_id, .witness = is->witness, .remembered = remembered});
}

void ReopenOperation::take(rtrs::ClientLane& lane, ReopenedDevice device) {
  reopened_.push_back(std::move(device));
  ask_next(lane);
}

void ReopenOperation::lose(rtrs::ClientLane& lane, ReopenedDevice device) {
  if (!loses_one_alone()) return fail(ESTALE, std::move(device.loss));
  take(lane, std::move(device));
}

/// Only answers about the storage itself are final. All else may be over soon: a server that is
/// being set up, or another client that holds the device. A server's own ESTALE says no more.
void ReopenOperation::on_refused(rtrs::ClientLane& lane, int error) {
  const bool at_open = step_ == Step::open;
  const std::uint32_t id = at_open ? kNoDevice : opened_.device_id.value();
  const std::string which =
      in_quotes(device().name) + " (" + to_string(device().options.access) + ")";
  if (at_open && error == ENOENT)
    return lose(lane, {.id = id, .loss = which + " is gone from the server"});
  // The EACCES of Linux's server is its device's: that may be read-only for a moment.
  if (at_open && error == EACCES && own_peer()) {
    return lose(lane,
                {.id = id, .loss = in_quotes(device().name) + " is not what it was: " + kEvicted});
  }
  if (at_open && error == EROFS) return lose(lane, {.id = id, .loss = which + " became read-only"});
  std::string why = "the server cannot open " + which + " again: " + in_words(error);
  const int refusal = error == ESTALE ? EIO : error;
  if (!loses_one_alone()) return fail(refusal, std::move(why));
  take(lane, {.id = id, .loss = std::move(why), .refusal = refusal});
}

/// A refused device is lost when no user wants to wait for it any more, and another device gains by
/// that.
void ReopenOperation::end() {
  const auto outdated = std::ranges::find_if(reopened_, &ReopenedDevice::outdated);
  const bool remembers = std::ranges::any_of(reopened_, &ReopenedDevice::remembered);
  if (outdated != reopened_.end() && !remembers && !limits_.any_server) {
    const std::string complaint = outdated->loss;
    reopened_.assign(reopened_.size(), {});  // that server's word does not count
    return fail(EREMCHG, complaint + "; " + kOlderServer);
  }
  const auto refused = std::ranges::find_if(
      reopened_, [](const ReopenedDevice& device) { return device.refusal != 0; });
  if (refused == reopened_.end()) return finish(0);
  bool waits = false;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    waits = waits || (reopened_[i].refusal != 0 && devices_[i].patient);
  }
  if (!waits && could_go_on_with_some()) return finish(0);
  fail(refused->refusal, refused->loss);
}

bool ReopenOperation::could_go_on_with_some() const {
  for (std::size_t i = 0; i < reopened_.size(); ++i) {
    if (reopened_[i].loss.empty() && !devices_[i].leaving) return true;
  }
  return false;
}

void ReopenOperation::fail(int error, std::string complaint) {
  complaint_ = std::move(complaint);
  finish(error);
}

}  // namespace rnbd
