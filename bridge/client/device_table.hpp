// SPDX-License-Identifier: BSD-3-Clause
// The devices that a session has open, and all decisions about them: open, share, claim, close, and
// open again.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bridge/client/device_handle.hpp"
#include "bridge/client/geometry.hpp"
#include "bridge/client/open_orders.hpp"
#include "bridge/client/refusal_patience.hpp"
#include "bridge/client/reopen.hpp"

namespace rnbd {

/// A device of a session, and all its users.
///
/// Threads: its table's, except `handle` and `torn`.
struct ClientDevice {
  enum class State : std::uint8_t { opening, open, closing };
  /// The answer to a user who wants to change it.
  enum class Claim : std::uint8_t {
    wait,     ///< until another user's CLAIM is answered
    ask,      ///< The server decides.
    covered,  ///< by the CLAIM of another user
    stale,    ///< likewise, but this one knows less of the content than that one
  };

  std::string name{};
  OpenOptions options{};
  State state = State::opening;
  unsigned users = 1;  ///< if 0, it is closed later
  /// Nobody knows whether the server has it open: a CLOSE must be answered before the next OPEN.
  bool half_closed = false;
  std::uint32_t open_number = 0;  ///< of the newest OPEN
  std::uint64_t open_era = 0;     ///< in which that was asked
  std::uint64_t close_era = 0;    ///< likewise, the newest CLOSE
  bool claimed = true;            ///< its users may write to it, as far as they know its content
  bool claiming = false;          ///< somebody waits for the answer
  Witness claimed_on{};           ///< the claimer's view of the content
  DeviceGeometry geometry{};      ///< the newest known: its size may grow once it is open
  /// As the newest session told it, in a life of the server that may have begun since.
  Witness witness{};
  RefusalPatience patience{};  ///< with refusals to open it again
  std::string loss{};          ///< why it is lost, and in the table no more; "" = it is not
  DeviceHandle handle{};       ///< the id changes with the session
  /// Something that was given up may land at any time.
  std::atomic<bool> torn{false};

  /// Nothing may land on top of a new user's writes.
  bool fit_for_next() const { return !handle.unresolved->writes() && !torn && !half_closed; }
  /// For a user who knows the content as it was at `seen`.
  Claim claim(const Witness& seen) const {
    if (claiming) return Claim::wait;
    if (!claimed) return Claim::ask;
    return knows_as_much(seen, claimed_on, witness) ? Claim::covered : Claim::stale;
  }
  /// The server has carried out the CLAIM of such a user, and told what there is.
  void claim_granted(const Witness& seen, const wire::DeviceInfoResponse& told);
  /// The server was asked once more.
  void look_again(const wire::DeviceInfoResponse& told);
};

/// The table of a session's devices, by name.
///
/// Pure: Session sends the messages and lets callers wait, the simulator does so with its own
/// clients. Both report the answers here.
///
/// Threads: one at a time.
/// Source:  docs/architecture.md, A device; docs/protocol.md, CLOSE and closing.
class DeviceTable {
 public:
  using Device = std::shared_ptr<ClientDevice>;
  using Devices = std::map<std::string, Device>;
  /// A new record, perhaps of a class with more in it.
  using Make = std::function<Device()>;

  explicit DeviceTable(Make make) : make_{std::move(make)} {}

  const Devices& devices() const { return devices_; }
  /// Null: there is none of that name.
  Device find(const std::string& name) const;

  // ---- Sessions with the server ----
  const Era& era() const { return orders_.era(); }
  bool is_past(std::uint64_t era) const { return orders_.is_past(era); }
  bool numbered() const { return OpenOrders::numbered(era().limits); }
  /// The first session is up.
  void enter(const rtrs::SessionLimits& limits);

  // ---- Opening ----
  enum class Join : std::uint8_t {
    wait,       ///< it is being opened or closed
    open,       ///< The caller has to open it.
    share,      ///< The caller is one more user.
    close,      ///< The caller has to close it, and joins again then.
    busy,       ///< Its users have another access mode.
    read_only,  ///< likewise, and the export cannot be written to
  };
  struct Joined {
    Join what{};
    Device device{};
  };
  Joined join(const std::string& name, const OpenOptions& options);
  /// OPEN. `answer` gets the server's, and must outlive the operation.
  std::unique_ptr<rtrs::Operation> open(ClientDevice& device, rtrs::MutableBytes answer);
  /// The end of it. `final`: its caller does not ask again, whatever has happened.
  void open_ended(const ClientDevice& device, bool final);
  /// The session that was asked is over: its answer counts no more.
  bool asks_again(const ClientDevice& device) const { return is_past(device.open_era); }
  /// The server has opened it. Returns the limits that the answer is about; none: asks_again().
  std::optional<rtrs::SessionLimits> take_id(ClientDevice& device, std::uint32_t id);
  void opened(ClientDevice& device, const DeviceGeometry& geometry);
  /// The caller leaves without it. `answered`: the server has refused it. True: the server may open
  /// it all the same, so that the caller has to close it.
  bool not_opened(ClientDevice& device, bool answered);

  // ---- Closing ----
  /// A user leaves. `stuck`: cancelled requests of it are under way at the server. True: the caller
  /// has to close it.
  bool release(ClientDevice& device, bool stuck);
  /// The next one without users or requests, which the caller has to close. Null: none.
  Device next_left();
  /// CLOSE. The device must outlive it.
  std::unique_ptr<rtrs::Operation> close(ClientDevice& device);
  /// Whether its end can be about this device.
  bool believes_close(const ClientDevice& device, int error) const {
    return orders_.believed(device.close_era) || !OpenOrders::closed(error);
  }
  /// Nobody asks again, except for next_left() and join().
  void close_ended(ClientDevice& device, int error);

  // ---- Recovery, when the server has forgotten the session ----
  /// The server has made another session, see OpenOrders::begin_recovery(). Returns the devices to
  /// be opened again.
  std::vector<ReopenDevice> begin_recovery(const rtrs::SessionLimits& limits, bool forgets,
                                           RefusalPatience::TimePoint now);
  /// The server has nothing open of the session before, nor of a failed attempt.
  bool certain() const { return orders_.certain(); }
  /// Those devices, until the recovery ends.
  const std::vector<Device>& reopening() const { return reopening_; }

  struct Unflushed {
    Device device;
    bool restarted = false;  ///< the server's machine was; otherwise the storage was lost
  };
  struct Recovered {
    std::vector<Device> lost;  ///< for their users
    std::vector<Unflushed> unflushed;
  };
  Recovered recovered(const std::vector<ReopenedDevice>& reopened);
  /// It failed. `others_wait`: with some devices it could go on. Returns what is lost all the same.
  std::vector<Device> refused(const std::vector<ReopenedDevice>& reopened, bool others_wait,
                              RefusalPatience::TimePoint now);
  /// Its path was lost.
  std::vector<Device> cut_short(const std::vector<ReopenedDevice>& reopened);

  /// Requests keep `device`, which is in the table no more. The record that takes its place is only
  /// closed; the server knows it by this id.
  Device leave_behind(const Device& device, std::uint32_t id);

 private:
  void forget(const ClientDevice& device);
  std::vector<Device> lose(const std::vector<ReopenedDevice>& reopened, bool goes_on);
  void lose(const Device& device, const ReopenedDevice& reopened);
  void end_recovery(bool success);

  Make make_;
  Devices devices_;
  OpenOrders orders_;
  VolatileEpoch volatile_epoch_;
  std::vector<Device> reopening_;
};

}  // namespace rnbd
