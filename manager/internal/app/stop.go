package app

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// wait returns when the manager was asked to stop, or must.
func (a *app) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return errors.Join(a.shutdown(), a.storeFailure())
	case <-a.store.Failed():
		// Nothing may be answered from a store that cannot keep its promises.
		a.server.Refuse("the store failed")
		err := a.storeFailure()
		a.log.Error("store failed, stopping", "error", err.Error())
		_ = a.shutdown()
		return err
	case err := <-a.ended:
		a.server.SetReady("a listener ended")
		_ = a.shutdown()
		return err
	}
}

// storeFailure is why the program must end with a failure, also when it was
// stopping already.
func (a *app) storeFailure() error {
	if err := a.store.Err(); err != nil {
		return fmt.Errorf("store failed: %w", err)
	}
	return nil
}

// shutdown stops taking requests and lets those at work finish.
func (a *app) shutdown() error {
	a.server.SetReady("stopping")
	a.log.Info("stopping")
	select {
	case <-time.After(a.settings.DrainDelay):
	case <-a.store.Failed():
	}
	a.ledger.Drain()
	a.queue.Drain()
	if a.logs != nil {
		a.logs.Drain()
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.settings.ShutdownTimeout)
	defer cancel()
	err := a.server.Shutdown(ctx)
	if err != nil {
		err = fmt.Errorf("requests were cut off after %v: %w", a.settings.ShutdownTimeout, err)
	}
	return err
}

// close releases everything that start got to, in reverse order. Its error is
// that of a store which could not be closed in order; one that failed before
// has been reported.
func (a *app) close() error {
	if a.server != nil {
		a.server.Abort()
	}
	if a.admin != nil {
		_ = a.admin.Close()
	}
	if a.ui != nil {
		a.ui.Close()
	}
	if a.serving {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = a.server.Shutdown(ctx)
	}
	a.stopBackground()
	a.background.Wait()
	if a.peers != nil {
		a.peers.Close()
	}
	if a.queue != nil {
		a.queue.Close()
	}
	if a.logs != nil {
		if err := a.logs.Close(); err != nil { // this writes the logs' time, so the store must be open
			a.log.Error("closing the logs failed", "error", err.Error())
		}
	}
	if a.shipper != nil { // it ships what is new, for a while
		ctx, cancel := context.WithTimeout(context.Background(), lastShipment)
		defer cancel()
		a.shipper.Close(ctx)
	}
	var err error
	if a.store != nil {
		failed := a.store.Err() != nil
		if err = a.store.Close(); err != nil && !failed {
			a.log.Error("closing the store failed", "error", err.Error())
			err = fmt.Errorf("closing the store: %w", err)
		} else {
			err = nil
		}
	}
	a.tracing.Shutdown()
	if a.began {
		// Else it failed to start, and the cause has a line of its own.
		a.log.Info("stopped")
	}
	return err
}
