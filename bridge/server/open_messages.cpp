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
  const OpenKind kind = kind_of(*wanted, number);
  const auto opening =
      std::make_shared<Opening>(request, number, std::move(*wanted), kind, session_);
  opening->access.unclaimed = session_.facts.claims &&
                              (opening->wanted.flags & wire::kOpenUnclaimed) != 0 &&
                              opening->wanted.mode == wire::AccessMode::read_write;
  opening->routine = open(*opening);
}

/// The answer may end the session, so nothing of it is touched afterwards.
Routine OpenMessages::open(Opening& opening) {
  auto found = co_await find(opening);
  if (!found) {
    answer(opening, std::move(found));
  } else {
    answer(opening, co_await steps_.reserve(opening, std::move(*found)));
  }
}

/// A lease of what has the name, for a user that may have it.
Task<Opening::Result> OpenMessages::find(Opening& opening) {
  const ExportCatalogue& catalogue = session_.catalogue;
  const std::string& name = opening.name();
  const wire::AccessMode mode = opening.wanted.mode;
  const Permission permission = catalogue.permission(name, session_.facts.user());
  const bool named = catalogue.has(name);
  const bool is_file = !named && catalogue.files().are_served();
  if (permission == Permission::none) {
    session_.log.audit_refusal(name, mode,
                               named ? "not in rw or ro" : "not in rw or ro of the search path",
                               rtrs::LogLevel::warning);
    // GCC 12 copies an argument in braces to the coroutine without its constructor.
    const Failure nothing{ENOENT, ""};
    co_return co_await search_in_vain(opening, nothing);
  }
  // The export has moved to another server. A file of that name here is a remnant.
  const std::string referral = named ? "" : catalogue.referral_of(name);
  if (!referral.empty()) {
    const Failure moved = refusal_of_referred(name, referral);
    co_return co_await search_in_vain(opening, moved);
  }
  if (permission == Permission::read && mode != wire::AccessMode::read_only) {
    session_.log.audit_refusal(name, mode, "not in rw", rtrs::LogLevel::info);
    co_return tl::unexpected(Failure{EROFS, ""});
  }
  if (is_file && opening.kind != OpenKind::again && has_its_share()) {
    session_.log.refusal(name, "refused to open " + in_quotes(name) +
                                   ": the last descriptors are for clients that have fewer files "
                                   "open (raise LimitNOFILE)");
    co_return tl::unexpected(Failure{EMFILE, ""});
  }
  if (is_file) co_return co_await lease_file(opening);
  co_return co_await lease_export(opening);
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

Task<Opening::Result> OpenMessages::lease_export(Opening& opening) {
  ExportCatalogue& catalogue = session_.catalogue;
  const std::string& name = opening.name();
  // A client that comes again goes on with the size that it knows: its writes may wait for a flush
  // over the present connection.
  const bool asks = opening.kind != OpenKind::again && catalogue.is_size_unsure(name);
  if (catalogue.is_stale(name)) {  // the name may lead to another storage now
    const auto renew = [known = &opening] { known->catalogue.renew(known->name()); };
    const auto renewed = co_await steps_.work(opening, OpenStep::renewing, name, renew);
    if (!renewed) co_return tl::unexpected(renewed.error());
    session_.queues.retire_what_is_over();
  } else if (asks) {  // the size that is known has to do if the other server does not answer
    const auto ask = [known = &opening] { known->catalogue.ask_size(known->name()); };
    if (!co_await steps_.work_for_a_moment(opening, OpenStep::renewing, name, ask))
      co_return tl::unexpected(OpeningSteps::too_late(opening));
  }
  for (;;) {  // while other writers leave
    auto lease = catalogue.open_named(name, opening.access);
    if (lease) co_return std::move(*lease);
    Failure refusal = refusal_of(name, lease.error());
    if (refusal.error == EPERM) {
      const auto room = co_await steps_.make_room(opening, catalogue.writers(name));
      if (room == OpeningSteps::Room::made) continue;
      if (room == OpeningSteps::Room::late)
        co_return tl::unexpected(OpeningSteps::too_late(opening));
      refusal.text =
          in_quotes(name) + ": " + catalogue.reservations().who_writes(catalogue.writers(name));
    }
    if (refusal.error == EBUSY || refusal.error == EAGAIN)
      refusal.text = in_quotes(name) + ": " + catalogue.trouble_of(name);
    co_return tl::unexpected(std::move(refusal));
  }
}

/// A file of the search path.
Task<Opening::Result> OpenMessages::lease_file(Opening& opening) {
  const SearchedFiles& files = session_.catalogue.files();
  const std::string owner = files.owner_for(session_.facts.name, session_.facts.identity);
  const auto find = [known = &opening, owner] {
    known->file.emplace(known->catalogue.files().open(owner, known->name(), known->access));
  };
  for (;;) {  // while other writers leave
    const auto looked = co_await steps_.work(opening, OpenStep::finding,
                                             files.line_of(owner, opening.name()), find);
    if (!looked) co_return tl::unexpected(looked.error());
    auto file = *std::exchange(opening.file, std::nullopt);
    if (file) co_return std::move(*file);
    if (file.error().error == EPERM) {
      const auto room = co_await steps_.make_room(opening, file.error().writers);
      if (room == OpeningSteps::Room::made) continue;
      if (room == OpeningSteps::Room::late)
        co_return tl::unexpected(OpeningSteps::too_late(opening));
    }
    co_return tl::unexpected(Failure{file.error()});
  }
}

/// As if there were no such export, and not sooner than if there were none.
Task<Opening::Result> OpenMessages::search_in_vain(Opening& opening, const Failure& refusal) {
  const SearchedFiles& files = session_.catalogue.files();
  if (files.are_served()) {
    const std::string owner = files.owner_for(session_.facts.name, session_.facts.identity);
    const auto look = [known = &opening, owner] {
      known->catalogue.files().search_in_vain(owner, known->name());
    };
    const auto looked = co_await steps_.work(opening, OpenStep::finding,
                                             files.line_of(owner, opening.name()), look);
    if (!looked) co_return tl::unexpected(looked.error());
  }
  co_return tl::unexpected(refusal);
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
void OpenMessages::answer(Opening& opening, Opening::Result result) {
  steps_.end(opening, [&] { answer_now(opening, std::move(result)); });
}

void OpenMessages::answer_now(const Opening& opening, Opening::Result result) {
  rtrs::ServerRequest& request = opening.request;
  const std::uint32_t number = opening.number;
  const std::string& name = opening.name();
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

Device& OpenMessages::add(const Opening& opening, Lease lease, BackendQueue& queue) {
  ExportCatalogue& catalogue = session_.catalogue;
  const std::string& name = opening.name();
  Device& device = session_.devices.add(std::make_unique<Device>(
      name, std::move(lease), queue, session_.services.meter(name, opening.reactor),
      ThrottleFlow{opening.reactor}));
  device.throttle = in_force(catalogue.throttle_of(name), session_.services);
  device.open_number = opening.number;
  device.writer_serial = catalogue.reservations().writer_serial(device.lease);
  for (const auto& annex : device.lease.storage()->annexes())
    annex->attach(device, session_.services, opening.reactor);
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
      open_response(device.lease.told_geometry(), device.id,
                    device.lease.mode() != wire::AccessMode::read_only, session_.facts.max_io_size);
  finish_with(request, rtrs::wire::bytes_of(response));
}

void OpenMessages::refuse(rtrs::ServerRequest& request, std::uint32_t number, int error) {
  session_.numbers.refuse(number, error);
  if (session_.services.meters != nullptr) session_.services.meters->refused(error);
  finish(request, error);
}

}  // namespace rnbd
