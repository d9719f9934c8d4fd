// SPDX-License-Identifier: BSD-3-Clause
// A simulated client machine: connects, opens devices, does block I/O, gives up, closes, comes
// back.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bridge/client/control.hpp"
#include "bridge/client/device_table.hpp"
#include "bridge/client/geometry.hpp"
#include "bridge/client/reopen.hpp"
#include "bridge/client/transfer.hpp"
#include "tests/sim/buffers.hpp"
#include "tests/sim/checker.hpp"
#include "tests/sim/client_driver.hpp"

namespace sim {

/// Parts that all clients of a run share.
struct ClientEnvironment {
  World& world;
  const Knobs& knobs;
  Disks& disks;
  Checker& checker;
  Network& network;
  NodeId server = 0;
  std::uint64_t server_id = 0;                ///< for those who know it
  std::function<unsigned(unsigned)> disk_of;  ///< what an export shows now
  /// ServerNode::generation() of the clone.
  std::function<std::uint64_t(unsigned slot, bool to_writer)> clone_generation;
};

class ClientNode final : public rtrs::RecoveryHandler {
 public:
  ClientNode(const ClientEnvironment& environment, unsigned number, const ClientKnobs& knobs);
  virtual ~ClientNode();
  ClientNode(const ClientNode&) = delete;
  ClientNode& operator=(const ClientNode&) = delete;

  NodeId node() const { return node_; }
  /// Begins: it decides its next step again and again from here on.
  void start();
  /// Faults are over: the last operations must succeed, then the client leaves.
  void finish();
  bool left() const { return left_; }
  /// The process dies and is started again.
  void kill();
  /// The reason for which it still waits, in words.
  std::string wait() const;

  // For the driver, when the server has forgotten the session.
  std::unique_ptr<rtrs::Operation> reopen(const rtrs::SessionLimits& limits) override;
  int reopened(rtrs::Operation& operation) override;
  void reopening_failed(rtrs::Operation& operation) override;

 private:
  using AccessMode = rnbd::wire::AccessMode;

  /// Of a device that several of one session use, each with what he knows of its content.
  struct User {
    rnbd::Witness seen;  ///< for his CLAIM
    Checker::Look look;
    bool may_change = false;
  };
  using UserPtr = std::shared_ptr<User>;

  struct Device : rnbd::ClientDevice {
    unsigned slot = 0;             ///< the export
    unsigned disk = 0;             ///< what it shows
    bool unknown = false;          ///< There is no such export, and the table does not have it.
    std::uint64_t opening = 0;     ///< the checker's
    rnbd::DeviceGeometry acts_on;  ///< as its users take it
    std::atomic<std::uint64_t> losses_told{0};
    unsigned running = 0;
    bool unwanted = false;  ///< is closed as soon as it may be, and not used until then
    bool closing = false;   ///< its users have left; the table has another record in its place
    /// It was opened unclaimed. Some never claim, and try to write all the same.
    bool shared = false;
    bool never_claims = false;
    /// When the right was asked for first; a CLAIM that was given up may be carried out all the
    /// same.
    Instant claim_asked{};
    bool claim_given_up = false;
    std::vector<UserPtr> sharers;  ///< who opened it, and others that came later
    bool patient = true;           ///< rnbd::ReopenDevice
    bool known = false;            ///< to the checker

    AccessMode mode() const { return options.access; }
    bool writes() const { return mode() != AccessMode::read_only && claimed; }
    bool lost() const { return !loss.empty(); }
    /// Its users share it as those of rnbd::Session do.
    bool may_be_joined() const { return sharers.size() < 3 && shared && !never_claims; }
  };
  using DevicePtr = std::shared_ptr<Device>;

  /// One transfer. Its operation may be destroyed as soon as it has told its end.
  struct Transfer {
    ClientNode* client = nullptr;
    std::uint64_t number = 0;
    OperationId id = 0;
    DevicePtr device;
    Buffer buffer;
    std::size_t lane = 0;
    bool ended = false;
    std::optional<rnbd::UnflushedWrites::Flush> flush;
    Instant begun{};
    bool writes = false;
    unsigned give_ups = 0;  ///< of the driver, before this; one more if it has given up now
    std::optional<rnbd::TransferOperation> operation;
  };

  /// One message that is no block I/O.
  struct Control {
    enum class Kind : std::uint8_t {
      info,
      open,
      device_info,
      close,
      list,
      status,
      cache,
      claim,
      join
    };
    ClientNode* client = nullptr;
    std::uint64_t number = 0;
    Kind kind{};
    std::uint64_t era = 0;  ///< when it was sent first
    unsigned losses = 0;    ///< of paths, likewise
    unsigned give_ups = 0;  ///< likewise
    unsigned slot = 0;
    AccessMode mode{};
    bool unclaimed = false;  ///< an OPEN that takes no reservation
    bool counted = false;    ///< a user who joins: the table knows of him already
    bool alone = false;      ///< a CLAIM: nobody has asked to write before
    bool unknown = false;    ///< an OPEN of what does not exist
    Instant asked{};         ///< when OPEN was sent
    bool fresh = true;       ///< no earlier OPEN of it was given up in this session
    DevicePtr device;
    UserPtr user;  ///< of a CLAIM
    rnbd::wire::OpenResponse opened;
    OperationId id = 0;
    Buffer answer;
    std::size_t lane = 0;
    bool ended = false;
    std::unique_ptr<rtrs::Operation> operation;
  };
  /// The client's view of a disk within a session.
  struct Mapping {
    enum class State : std::uint8_t { closed, opening, open, closing, half_closed };
    DevicePtr device;  ///< the table's
    std::optional<AccessMode> asked;
    bool asked_unclaimed = false;
    /// Of an OPEN that was given up, or without numbers one whose path died: they may come late, so
    /// that the next one asks for the same.
    bool copies = false;

    State state() const;
  };

  // client_node.cpp: sessions and decisions
  static rnbd::DeviceTable::Device new_device() { return std::make_shared<Device>(); }
  void think();
  void decide();
  void decide_leaving();
  void connect();
  void session_up();
  void session_down();
  void cancel_something();
  void check_waits();
  bool idle() const { return transfers_.empty() && controls_.empty(); }
  const rtrs::SessionLimits& limits() const { return table_.era().limits; }  ///< of the newest

  // client_io.cpp: transfers
  void start_transfer();
  OperationPlan draw_plan(const Device& device, const User& user);
  void draw_range(const Device& device, OperationPlan& plan);
  rnbd::Transfer make_transfer(Transfer& transfer, const OperationPlan& plan);
  void end_transfer(Transfer& transfer);
  void cancel(Transfer& transfer);

  // client_control.cpp: everything else
  void exchange_versions();
  void open_something();
  bool numbers_opens() const { return table_.numbered(); }
  DevicePtr join(const Control& open);
  void send_open(std::unique_ptr<Control> control);
  void ask_device_info(Control& open);
  void ask_anew(Control& old);
  bool may_open() const;
  bool may_close(const Mapping& mapping) const;
  void close_device(Mapping& mapping);
  void note_closing(Device& device);
  void send_close(const DevicePtr& device);
  void close_what_was_left();
  void now_closed(Mapping& mapping);
  void ask_something();
  template <class Message>
  void start_control(std::unique_ptr<Control> control, const Message& message, std::size_t room);
  void launch(std::unique_ptr<Control> control);
  void end_control(Control& control);
  void handle_answer(Control& control, int error);
  bool may_refuse(const Control& open, int error) const;
  bool may_hang(bool writes) const;
  void opened(Control& control, const rnbd::wire::DeviceInfoResponse* info);
  unsigned find_disk(const Device& device) const;
  void check_geometry(const Device& device);
  void handle_status(Control& control, int error);

  // client_claims.cpp: what is opened without the right to write
  bool may_claim(const Device& device, const User& user);
  void send_claim(const DevicePtr& device, const UserPtr& user);
  void handle_claim(Control& control, int error);
  void refused_claim(Control& control, int error);
  void share_claim(Device& device, const UserPtr& user);
  void leave(Device& device, const UserPtr& user);
  void send_join(const DevicePtr& device, bool counted);
  void handle_join(Control& control, int error);
  void leave_open_question(const Control& control);
  void leave_half_open(const Control& open);
  void cancel(Control& control);

  // client_reopening.cpp: the next session
  bool knows_clone() const;
  void judge_refusal(const std::vector<DevicePtr>& asked, const rnbd::ReopenOperation& reopen);
  std::vector<DevicePtr> reopening() const;
  void lose(const std::vector<rnbd::DeviceTable::Device>& lost);
  void lose(const DevicePtr& device);
  DevicePtr take_over(const Device& device, const rnbd::DeviceTable::Device& left);
  void note_recovery(const rnbd::ReopenOperation& reopen);

  void violate(const std::string& rule);
  Rng& rng() { return world_.rng(); }

  ClientEnvironment environment_;
  World& world_;
  unsigned number_;
  ClientKnobs knobs_;
  NodeId node_;
  Scope scope_;
  Buffers buffers_;
  std::map<std::uint64_t, std::unique_ptr<Transfer>> transfers_;
  std::map<std::uint64_t, std::unique_ptr<Control>> controls_;
  std::vector<Mapping> mappings_;  ///< by export
  rnbd::DeviceTable table_;
  std::optional<Instant> reopening_since_;
  std::uint64_t next_ = 1;
  unsigned sessions_ = 0;
  unsigned fruitless_ = 0;  ///< decisions in a row that led to nothing
  bool informed_ = false;   ///< the versions have been exchanged
  bool finishing_ = false;
  bool leaving_ = false;
  bool left_ = false;
  unsigned final_left_ = 0;
  std::uint64_t server_id_ = 0;  ///< as this process knows it
  std::unique_ptr<ClientDriver> driver_;
};

}  // namespace sim
