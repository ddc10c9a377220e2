package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/oncegate/oncegate/envoy"
	"github.com/oncegate/oncegate/manager/managertest/ports"
)

// members of etcd, and managers before them, of a stack with Config.Etcd.
const (
	members  = 3
	managers = 2
)

// cluster is a stack's etcd and the managers beside the first one. The ports stay the same in a folder, because the
// members know each other by them.
type cluster struct {
	Client, Peer [members]int
	// API and Admin are the ports of the second manager.
	API, Admin int

	etcd    [members]*process
	second  *process
	program string
}

// clusterFile has the ports, in the stack's folder.
const clusterFile = "cluster.json"

// startEtcd starts the members. They are ready when a majority is.
func (s *Stack) startEtcd(ctx context.Context) error {
	c := &cluster{}
	s.cluster = c
	var err error
	if c.program, err = exec.LookPath("etcd"); err != nil {
		return fmt.Errorf("etcd is not installed (Debian: apt-get install etcd-server): %w", err)
	}
	if err := s.clusterPorts(); err != nil {
		return err
	}
	for i := range members {
		if err := s.launchMember(i); err != nil {
			return err
		}
	}
	for i := range members {
		if err := s.memberReady(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stack) memberReady(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return s.cluster.etcd[i].waitReady(ctx, func(ctx context.Context) error {
		return get(ctx, "http://"+address(s.cluster.Client[i])+"/health")
	})
}

// clusterPorts takes the ports of the folder's file, or free ones that it writes there.
func (s *Stack) clusterPorts() error {
	file := filepath.Join(s.cfg.Dir, clusterFile)
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, s.cluster)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c := s.cluster
	all := []programPort{{&c.API, secondManager}, {&c.Admin, secondManager + "'s admin listener"}}
	for i := range members {
		all = append(all, programPort{&c.Client[i], memberName(i)}, programPort{&c.Peer[i], memberName(i) + "'s peers"})
	}
	if err := s.hold(ports.HoldLasting, all); err != nil {
		return err
	}
	if text, err = json.Marshal(c); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

func memberName(i int) string { return fmt.Sprintf("etcd-%d", i+1) }

func (s *Stack) launchMember(i int) (err error) {
	c := s.cluster
	all := make([]string, members)
	for j := range all {
		all[j] = memberName(j) + "=http://" + address(c.Peer[j])
	}
	client, peer := "http://"+address(c.Client[i]), "http://"+address(c.Peer[i])
	log := s.logPath(memberName(i))
	c.etcd[i], err = startProcess(program{name: memberName(i), path: c.program, logPath: log, outPath: log, args: []string{
		"--name", memberName(i), "--data-dir", filepath.Join(s.cfg.Dir, memberName(i)), "--logger", "zap", "--log-level", "warn",
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
		"--snapshot-count", "10000", // etcd before 3.6 keeps ten times as many changes in memory
		"--initial-advertise-peer-urls", peer, "--initial-cluster", strings.Join(all, ","), "--initial-cluster-token", "oncegate",
	}}, s.surprise)
	return err
}

// storeArgs say where a manager has its records.
func (s *Stack) storeArgs() []string {
	if s.cluster == nil {
		return []string{"--data-dir", filepath.Join(s.cfg.Dir, "data")}
	}
	urls := make([]string, members)
	for i := range urls {
		urls[i] = "http://" + address(s.cluster.Client[i])
	}
	return []string{"--store", "etcd", "--store-dsn", strings.Join(urls, ",")}
}

// secondManager is its role and the name of its log.
const secondManager = "manager-2"

func (s *Stack) startSecond(ctx context.Context) (err error) {
	c := s.cluster
	c.second, err = s.start(ctx, secondManager, "oncegate", append([]string{"serve", "--listen", address(c.API), "--admin", address(c.Admin)}, s.storeArgs()...),
		"http://"+address(c.Admin)+"/readyz")
	return err
}

// Restarts reports whether Restart can start a process again: a manager, a member of etcd, or the proxy. atOnce says that
// nothing else serves meanwhile.
func (s *Stack) Restarts(role string) (restarts, atOnce bool) {
	if role == s.cfg.Proxy.Name() {
		return true, true
	}
	return role == "manager" || s.cluster != nil && (role == secondManager || strings.HasPrefix(role, "etcd-")), false
}

// Restart starts a process again that was killed.
func (s *Stack) Restart(ctx context.Context, role string) error {
	switch {
	case role == "manager":
		return s.StartManager(ctx)
	case role == secondManager && s.cluster != nil:
		return s.startSecond(ctx)
	case role == s.cfg.Proxy.Name():
		return s.startProxy(ctx)
	}
	for i := range members {
		if s.cluster != nil && role == memberName(i) {
			if err := s.launchMember(i); err != nil {
				return err
			}
			return s.memberReady(ctx, i)
		}
	}
	return fmt.Errorf("%s cannot be started again", role)
}

// shared are the managers before etcd.
func (s *Stack) shared() []envoy.SharedManager {
	return []envoy.SharedManager{{API: address(s.Ports.Manager), Admin: address(s.Ports.ManagerAdmin)}, {API: address(s.cluster.API), Admin: address(s.cluster.Admin)}}
}

// killEtcd ends the members the hard way: they survive it, and a member that stops tidily waits for the others.
func (s *Stack) killEtcd() {
	if s.cluster == nil {
		return
	}
	for i, p := range s.cluster.etcd {
		if p != nil {
			p.kill()
			s.cluster.etcd[i] = nil
		}
	}
}
