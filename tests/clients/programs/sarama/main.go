// Command client is IBM/sarama behind the line protocol of tests/clients/programs.
package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const (
	tick     = 10 * time.Millisecond
	maxBurst = 100
	// records of a partition: a request for each one is slower than they come
	commitEvery = 50
)

type client struct{ *program }

func main() {
	c := &client{newProgram()}
	c.run(map[string]func(context.Context){
		"producer": c.produce,
		"consumer": c.consume,
	})
}

func version() string { return versionOf("github.com/IBM/sarama") }

func (c *client) brokers() []string { return strings.Split(c.text("bootstrap"), ",") }

func (c *client) config() *sarama.Config {
	config := sarama.NewConfig()
	config.ClientID = c.text("name")
	config.Version = sarama.V2_8_0_0
	return config
}

func (c *client) due() []*sarama.ProducerMessage {
	count := min(int(time.Since(c.began).Seconds()*float64(c.number("rate", 100)))-c.sent, maxBurst)
	var due []*sarama.ProducerMessage
	for ; count > 0; count-- {
		value := "live|" + c.text("name") + "|" + strconv.Itoa(c.next) + "|" + filler
		due = append(due, &sarama.ProducerMessage{
			Topic: c.text("topic"), Partition: int32(c.next % c.number("partitions", 1)),
			Value: sarama.StringEncoder(value), Metadata: c.next,
		})
		c.next++
		c.sent++
	}
	return due
}

// produce: mode=idempotent (one request at a time, as it wants) or mode=sync (SendMessages waits for its acknowledgements).
func (c *client) produce(stop context.Context) {
	config := c.config()
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Producer.Return.Errors = true
	config.Net.MaxOpenRequests = 1
	if c.arguments["mode"] == "idempotent" {
		config.Producer.Idempotent = true
	}
	if c.arguments["mode"] == "sync" {
		c.produceSync(stop, config)
		return
	}
	config.Producer.Flush.Frequency = 5 * time.Millisecond
	producer, err := sarama.NewAsyncProducer(c.brokers(), config)
	if err != nil {
		panic(err)
	}
	c.say("ready", fields{"version": version()})
	var answers sync.WaitGroup
	answers.Add(2)
	go func() {
		defer answers.Done()
		for message := range producer.Successes() {
			c.acked(message.Metadata.(int), message.Offset)
		}
	}()
	go func() {
		defer answers.Done()
		for failure := range producer.Errors() {
			c.failed([]int{failure.Msg.Metadata.(int)}, true, failure.Err)
		}
	}()
	for stop.Err() == nil {
		for _, message := range c.due() {
			producer.Input() <- message
		}
		time.Sleep(tick)
		c.flush()
	}
	producer.AsyncClose()
	answers.Wait()
	c.flush()
	c.say("closed", fields{"next": c.next})
}

func (c *client) produceSync(stop context.Context, config *sarama.Config) {
	producer, err := sarama.NewSyncProducer(c.brokers(), config)
	if err != nil {
		panic(err)
	}
	c.say("ready", fields{"version": version()})
	for stop.Err() == nil {
		due := c.due()
		if len(due) > 0 {
			refused := map[int]error{}
			var failures sarama.ProducerErrors
			if err := producer.SendMessages(due); errors.As(err, &failures) {
				for _, failure := range failures {
					refused[failure.Msg.Metadata.(int)] = failure.Err
				}
			} else if err != nil {
				c.error("error", err)
			}
			for _, message := range due {
				number := message.Metadata.(int)
				if err, ok := refused[number]; ok {
					c.failed([]int{number}, true, err)
				} else {
					c.acked(number, message.Offset)
				}
			}
		}
		time.Sleep(tick)
		c.flush()
	}
	if err := producer.Close(); err != nil {
		c.error("error", err)
	}
	c.flush()
	c.say("closed", fields{"next": c.next})
}

func (c *client) consume(stop context.Context) {
	config := c.config()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Return.Errors = true
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	strategy := sarama.NewBalanceStrategyRange()
	if c.arguments["assignor"] == "sticky" {
		strategy = sarama.NewBalanceStrategySticky()
	}
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
	group, err := sarama.NewConsumerGroup(c.brokers(), c.text("group"), config)
	if err != nil {
		panic(err)
	}
	c.say("ready", fields{"version": version()})
	go func() {
		for err := range group.Errors() {
			c.error("notice", err)
		}
	}()
	for stop.Err() == nil {
		err := group.Consume(stop, []string{c.text("topic")}, handler{c})
		var timeout interface{ Timeout() bool }
		switch {
		case err == nil || stop.Err() != nil:
		case errors.As(err, &timeout) && timeout.Timeout():
			// JoinGroup took longer than Net.ReadTimeout; every example of the library calls Consume again
			c.error("notice", err)
		default:
			c.error("error", err)
			time.Sleep(time.Second)
		}
	}
	if err := group.Close(); err != nil {
		c.error("notice", err)
	}
	c.say("closed", nil)
}

type handler struct{ *client }

func (h handler) held(event string, session sarama.ConsumerGroupSession) {
	pairs := [][2]any{}
	for topic, partitions := range session.Claims() {
		for _, partition := range partitions {
			pairs = append(pairs, [2]any{topic, partition})
		}
	}
	h.say(event, fields{"p": pairs})
}

func (h handler) Setup(session sarama.ConsumerGroupSession) error {
	h.held("assigned", session)
	return nil
}

func (h handler) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	h.held("revoked", session)
	return nil
}

func (h handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	uncommitted := 0
	for {
		select {
		case <-session.Context().Done():
			return nil // Cleanup commits what is marked
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			name, number := identity(message.Value)
			h.say("records", fields{"topic": message.Topic, "p": message.Partition, "r": [][3]any{{message.Offset, name, number}}})
			session.MarkMessage(message, "")
			if uncommitted++; uncommitted >= commitEvery {
				session.Commit()
				uncommitted = 0
			}
		}
	}
}
