// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/open_messages.hpp"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/answer.hpp"
#include "bridge/server/open_numbers.hpp"
#include "bridge/server/open_table.hpp"
#include "bridge/server/queue_table.hpp"
#include "bridge/server/session_facts.hpp"
#include "bridge/server/session_log.hpp"
#include "rdma/descriptor_reserve.hpp"

namespace rnbd {
namespace {

Failure refusal_of_referred(const std::string& name, const std::string& uri) {
  return {ENOENT, in_quotes(name) + ": it is a referral to " + uri};
}

/// Only clients that number their OPENs say so.
OpenKind kind_of(const wire::OpenRequest& wanted, std::uint32_t number) {
  if (number == 0) return OpenKind::unknown;
  return (wanted.flags & wire::kOpenAgain) != 0 ? OpenKind::again : OpenKind::anew;
}

}  // namespace

void OpenMessages::on_request(rtrs::ServerRequest& request) {
  auto wanted = wire::decode_open(request.message);
  // The room for the answer is checked first: nobody could close a device without its id.
  if (!wanted || !request.is_read || request.data.size() < sizeof(wire::OpenResponse))
    return finish(request, EINVAL);
  const wire::OpenOrder order = session_.facts.order_of(request.message, sizeof(wire::Open));
  const std::uint32_t number = order.number;
  session_.numbers.settle(order.settled);
  const std::string name = wanted->device_name;
  if (int error = session_.numbers.verdict(number, name)) return finish(request, error);
  if (is_out(name, wanted->mode)) return refuse(request, number, EACCES);
  if (Device* device = session_.devices.find(name)) {
    // A copy of an OPEN finds what the first one found.
    const bool comes_again = kind_of(*wanted, number) == OpenKind::again;
    if (comes_again && number > device->newest_number)
      session_.catalogue.reservations().come_again(device->lease);
    return answer_with(request, number, *device);
  }
  if (session_.devices.full()) return refuse(request, number, EMFILE);
  const ExportCatalogue& catalogue = session_.catalogue;
  const Permission permission = catalogue.permission(name, session_.facts.user());
  const bool named = catalogue.has(name);
  const bool is_file = !named && catalogue.files().are_served();
  const std::string referral = named ? "" : catalogue.referral_of(name);
  const OpenKind kind = kind_of(*wanted, number);
  const auto opening = std::make_shared<Opening>(
      request, number, std::move(*wanted), kind, session_,
      [this](const OpeningPtr& it, Opening::Result result) { answer(it, std::move(result)); });
  opening->access.unclaimed = session_.facts.claims &&
                              (opening->wanted.flags & wire::kOpenUnclaimed) != 0 &&
                              opening->wanted.mode == wire::AccessMode::read_write;
  if (permission == Permission::none) return refuse_stranger(opening);
  // The export has moved to another server. A file of that name here is a remnant.
  if (!referral.empty()) return refuse_unseen(opening, refusal_of_referred(name, referral));
  if (permission == Permission::read && opening->wanted.mode != wire::AccessMode::read_only) {
    session_.log.audit_refusal(name, opening->wanted.mode, "not in rw", rtrs::LogLevel::info);
    return refuse(request, number, EROFS);
  }
  if (is_file && kind != OpenKind::again && has_its_share()) {
    session_.log.refusal(name, "refused to open " + in_quotes(name) +
                                   ": the last descriptors are for clients that have fewer files "
                                   "open (raise LimitNOFILE)");
    return refuse(request, number, EMFILE);
  }
  is_file ? open_file(opening) : open_export(opening);
}

/// By command, so the rights say nothing of it.
bool OpenMessages::is_out(const std::string& name, wire::AccessMode mode) {
  const User user = session_.facts.user();
  if (!session_.catalogue.evicted().contains(user)) return false;
  const std::string why = "evicted; the command readmit " + who_is(user) + " lets it in again";
  session_.log.audit_refusal(name, mode, why.c_str(), rtrs::LogLevel::warning);
  return true;
}

/// One client must leave descriptors to the others, except for what it opens again: its users would
/// get EIO. An export has its own all the time.
bool OpenMessages::has_its_share() const {
  constexpr std::size_t kAlwaysFree = 4;  ///< devices that any session may have
  const auto open = std::ranges::count_if(session_.devices.slots(),
                                          [](const auto& device) { return device != nullptr; });
  return static_cast<std::size_t>(open) >= kAlwaysFree && rtrs::are_descriptors_scarce();
}

// ---- An export ----------------------------------------------------------------------------------

void OpenMessages::open_export(const OpeningPtr& opening) {
  const ExportCatalogue& catalogue = session_.catalogue;
  if (catalogue.is_stale(opening->name())) return renew_export(opening);
  // A client that comes again goes on with the size that it knows: its writes may wait for a flush
  // over the present connection.
  const bool asks = opening->kind != OpenKind::again && catalogue.is_size_unsure(opening->name());
  asks ? ask_size(opening) : lease_export(opening);
}

/// The size that is known has to do if the other server does not answer.
void OpenMessages::ask_size(const OpeningPtr& opening) {
  const auto ask = [known = opening.get()] { known->catalogue.ask_size(known->name()); };
  steps_.work_for_a_moment(opening, OpenStep::renewing, opening->name(), ask,
                           [this, opening] { lease_export(opening); });
}

/// The name may lead to another storage now.
void OpenMessages::renew_export(const OpeningPtr& opening) {
  const auto renew = [known = opening.get()] { known->catalogue.renew(known->name()); };
  steps_.work(opening, OpenStep::renewing, opening->name(), renew, [this, opening] {
    session_.queues.retire_what_is_over();
    lease_export(opening);
  });
}

/// Again and again, while another writer leaves.
void OpenMessages::lease_export(const OpeningPtr& opening) {
  const std::string& name = opening->name();
  ExportCatalogue& catalogue = session_.catalogue;
  auto lease = catalogue.open_named(name, opening->access);
  if (lease) return steps_.reserve(opening, std::move(*lease));
  const bool retry =
      lease.error() == EPERM && steps_.make_room(opening, catalogue.writers(name),
                                                 [this, opening] { lease_export(opening); });
  if (retry) return;
  Failure refusal = refusal_of(name, lease.error());
  if (refusal.error == EBUSY || refusal.error == EAGAIN)
    refusal.text = in_quotes(name) + ": " + catalogue.trouble_of(name);
  if (refusal.error == EPERM)
    refusal.text =
        in_quotes(name) + ": " + catalogue.reservations().who_writes(catalogue.writers(name));
  answer(opening, tl::unexpected(std::move(refusal)));
}

// ---- A file of the search path ------------------------------------------------------------------

void OpenMessages::open_file(const OpeningPtr& opening) {
  const SessionFacts& facts = session_.facts;
  const std::string& owner = session_.catalogue.files().owner_for(facts.name, facts.identity);
  const auto find = [known = opening.get(), owner] {
    known->file.emplace(known->catalogue.files().open(owner, known->name(), known->access));
  };
  steps_.work(opening, OpenStep::finding,
              session_.catalogue.files().line_of(owner, opening->name()), find,
              [this, opening] { found(opening); });
}

void OpenMessages::found(const OpeningPtr& opening) {
  auto file = *std::exchange(opening->file, std::nullopt);
  if (file) return steps_.reserve(opening, std::move(*file));
  const Refusal& refusal = file.error();
  const bool retry =
      refusal.error == EPERM &&
      steps_.make_room(opening, refusal.writers, [this, opening] { open_file(opening); });
  if (!retry) answer(opening, tl::unexpected(Failure{refusal}));
}

void OpenMessages::refuse_stranger(const OpeningPtr& opening) {
  session_.log.audit_refusal(opening->name(), opening->wanted.mode,
                             session_.catalogue.has(opening->name())
                                 ? "not in rw or ro"
                                 : "not in rw or ro of the search path",
                             rtrs::LogLevel::warning);
  refuse_unseen(opening, {ENOENT, ""});
}

/// As if there were no such export, and not sooner than if there were none.
void OpenMessages::refuse_unseen(const OpeningPtr& opening, const Failure& failure) {
  const SessionFacts& facts = session_.facts;
  ExportCatalogue& catalogue = session_.catalogue;
  if (!catalogue.files().are_served()) return answer(opening, tl::unexpected(failure));
  const std::string& owner = catalogue.files().owner_for(facts.name, facts.identity);
  const auto look = [known = opening.get(), owner] {
    known->catalogue.files().look_in_vain(owner, known->name());
  };
  steps_.work(opening, OpenStep::finding, catalogue.files().line_of(owner, opening->name()), look,
              [this, opening, failure] { answer(opening, tl::unexpected(failure)); });
}

// ---- The result ---------------------------------------------------------------------------------

/// A reload ends sessions that have lost a right, but cannot see an OPEN that is under way. Returns
/// 0, or the errno that this OPEN gets by the present rights.
int OpenMessages::withdrawn_meanwhile(const std::string& name, wire::AccessMode mode) {
  if (is_out(name, mode)) return EACCES;
  const Permission now = session_.catalogue.permission(name, session_.facts.user());
  const bool reads = mode == wire::AccessMode::read_only;
  if (now == Permission::write || (reads && now == Permission::read)) return 0;
  session_.log.audit_refusal(name, mode, "its right was withdrawn meanwhile",
                             rtrs::LogLevel::warning);
  return now == Permission::read ? EROFS : ENOENT;
}

/// The answer may end the session, unless somebody else waits, so nothing of it is touched
/// afterwards.
void OpenMessages::answer(const OpeningPtr& opening, Opening::Result result) {
  opening->end();
  rtrs::ServerRequest& request = opening->request;
  const std::uint32_t number = opening->number;
  const std::string& name = opening->name();
  SessionLog& log = session_.log;
  if (int error = session_.numbers.verdict(number, name)) return finish(request, error);
  // Another OPEN of the same name may have finished while this one waited. It may be a copy of this
  // one with a lost answer, so the device would stay open.
  if (Device* device = session_.devices.find(name)) return answer_with(request, number, *device);
  if (!result) {
    const Failure failure = steps_.may_be_its_own(result.error().error) ? directory_hangs(name)
                                                                        : std::move(result.error());
    // A client that is content with reading asks again, as clients do by default. Of a stranger the
    // log has a line already.
    if (failure.error != EROFS && !failure.text.empty())
      log.refusal(name, "refused to open " + failure.text);
    return refuse(request, number, failure.error);
  }
  if (const int error = withdrawn_meanwhile(name, result->mode()))
    return refuse(request, number, error);
  if (session_.devices.full()) return refuse(request, number, EMFILE);
  BackendQueue* queue = session_.queues.acquire(result->storage());
  if (queue == nullptr) {
    log.refusal(name, "refused to open " + in_quotes(name) +
                          ": there are no descriptors or memory for it (LimitNOFILE=)");
    return refuse(request, number, ENOMEM);
  }
  Device& device = add(opening, std::move(*result), *queue);
  report(device);
  answer_with(request, number, device);
}

Device& OpenMessages::add(const OpeningPtr& opening, Lease lease, BackendQueue& queue) {
  ExportCatalogue& catalogue = session_.catalogue;
  const std::string& name = opening->name();
  Device& device = session_.devices.add(std::make_unique<Device>(
      name, std::move(lease), queue, session_.surroundings.meter(name, opening->reactor),
      ThrottleFlow{opening->reactor}));
  device.throttle = in_force(catalogue.throttle_of(name), session_.surroundings);
  device.open_number = opening->number;
  device.writer_serial = catalogue.reservations().writer_serial(device.lease);
  for (const auto& annex : device.lease.storage()->annexes())
    annex->attach(device, session_.surroundings, opening->reactor);
  catalogue.reservations().name_writer(device.lease, session_.facts.in_words());
  return device;
}

void OpenMessages::report(const Device& device) {
  const SessionFacts& facts = session_.facts;
  SessionLog& log = session_.log;
  const std::string& name = device.name;
  log.say(rtrs::LogLevel::info, "device_opened", name,
          "opened " + in_quotes(name) + " " + wire::to_string(device.lease.mode()) +
              (device.lease.unclaimed() ? ", unclaimed" : ""));
  if (!facts.identity.empty() || session_.catalogue.has_rights(name)) {
    log.tell(rtrs::LogLevel::info, "open_ok", name,
             audit_line("open ok", {{"peer", facts.peer},
                                    {"identity", facts.identity},
                                    {"session", facts.name},
                                    {"export", name},
                                    {"access", wire::to_string(device.lease.mode())}}));
  }
  if (device.lease.storage()->backend().whereabouts() == Whereabouts::unnamed) {
    log.refusal(name,
                "the file of " + in_quotes(name) +
                    " was deleted or replaced: what is written to it is gone when this server ends",
                "file_replaced");
  }
}

void OpenMessages::answer_with(rtrs::ServerRequest& request, std::uint32_t number, Device& device) {
  device.newest_number = std::max(device.newest_number, number);
  device.lease.look_again();
  const wire::OpenResponse response =
      open_response(device.geometry(), device.id,
                    device.lease.mode() != wire::AccessMode::read_only, session_.facts.max_io_size);
  finish_with(request, rtrs::wire::bytes_of(response));
}

void OpenMessages::refuse(rtrs::ServerRequest& request, std::uint32_t number, int error) {
  session_.numbers.refuse(number, error);
  if (session_.surroundings.meters != nullptr) session_.surroundings.meters->refused(error);
  finish(request, error);
}

}  // namespace rnbd
